"""Running a checkpoint's jinja2 template without trusting it.

The template sees only what it is given: it cannot reach an attribute that starts with an underscore,
change what it was handed, load a file or call anything but jinja's own functions and those below. It
can still loop for long: a sandbox bounds what a template reaches, not what it costs.

Source: what transformers 5.23 offers to chat templates.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn, Self

import jinja2
from jinja2 import meta, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from fuel_core.errors import RequestError, TokenizerError


class _Refusal(jinja2.TemplateError):
    """The template called ``raise_exception``."""


@dataclass(frozen=True, kw_only=True)
class SandboxedTemplate:
    """A compiled template.

    Attributes:
        template: what jinja2 runs.
        what: what errors call it.
        asks_for_null_content: it tells messages apart by ``content is none``.
        reads: the names of the variables that it may look up.
    """

    template: jinja2.Template
    what: str
    asks_for_null_content: bool
    reads: frozenset[str]

    @classmethod
    def compile(cls, source: str, *, what: str, now: Callable[[], datetime]) -> Self:
        """Compile a template whose ``strftime_now`` reads the clock ``now``.

        Raises:
            TokenizerError: it is no jinja2 template, or uses filters, tests or tags that do not exist.
        """
        environment = _environment(now)
        try:
            tree = environment.parse(source)
            asks_for_null_content = _asks_for_null_content(tree)
            reads = frozenset(meta.find_undeclared_variables(tree))
            template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise TokenizerError(f"{what} does not compile: line {error.lineno}: {error.message}") from error
        except Exception as error:  # jinja leaves some faults to Python, such as `break` outside of a loop
            raise TokenizerError(f"{what} does not compile: {error}") from error
        return cls(template=template, what=what, asks_for_null_content=asks_for_null_content, reads=reads)

    def render(self, variables: Mapping[str, Any]) -> str:
        """Run the template.

        Args:
            variables: plain values; the template cannot change them, but is not kept from reading any.

        Raises:
            RequestError: the template refuses these variables or fails on them.
            TokenizerError: it attempts what the sandbox forbids.
        """
        try:
            return self.template.render(variables)
        except _Refusal as refusal:
            raise RequestError(f"{self.what} refuses this conversation: {refusal}") from None
        except SecurityError as error:
            raise TokenizerError(
                f"{self.what} does what a chat template may not: {error}. Nothing was harmed; do not trust "
                "this checkpoint, or use another template"
            ) from error
        except Exception as error:  # whatever an expression can raise: TypeError for `none + 'text'`, ...
            raise RequestError(
                f"{self.what} fails on this conversation ({type(error).__name__}: {error}); it may not "
                "support such messages"
            ) from error


def _environment(now: Callable[[], datetime]) -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda format: now().strftime(format)
    return environment


class _GenerationTag(Extension):
    """``{% generation %}...{% endgeneration %}`` marks an answer for training; here it is only a scope."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Unlike jinja's own filter: nothing is escaped for HTML, keys stay in order."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise _Refusal(message)


def _asks_for_null_content(tree: nodes.Template) -> bool:
    for test in tree.find_all(nodes.Test):
        match test:
            case nodes.Test(name="none", node=nodes.Getattr(attr="content")):
                return True
            case nodes.Test(name="none", node=nodes.Getitem(arg=nodes.Const(value="content"))):
                return True
    return False
