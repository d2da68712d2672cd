"""What templates may use, and what they may not do."""

from datetime import datetime
from typing import Any

import pytest

from fuel_core.errors import RequestError, TokenizerError
from fuel_core.text.template_sandbox import SandboxedTemplate


def compiled(source: str) -> SandboxedTemplate:
    return SandboxedTemplate.compile(source, what="the template", now=lambda: datetime(2024, 7, 6))


def render(source: str, **variables: Any) -> str:
    return compiled(source).render(variables)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ v | tojson }}", '{"z": "<é> & \'", "a": [1, null, true]}'),
        ("{{ v | tojson(ensure_ascii=true) }}", '{"z": "<\\u00e9> & \'", "a": [1, null, true]}'),
        ("{{ v | tojson(indent=1) }}", '{\n "z": "<é> & \'",\n "a": [\n  1,\n  null,\n  true\n ]\n}'),
        ("{{ v | tojson(separators=(',', ':')) }}", '{"z":"<é> & \'","a":[1,null,true]}'),
        ("{{ v | tojson(sort_keys=true) }}", '{"a": [1, null, true], "z": "<é> & \'"}'),
        ("{{ v.z }}", "<é> & '"),
        ("{{ strftime_now('%d %b %Y') }}", "06 Jul 2024"),
        ("{% for i in [1, 2, 3, 4] %}{% if i == 2 %}{% continue %}{% elif i == 4 %}{% break %}{% endif %}"
         "{{ i }}{% endfor %}", "13"),
        ("a\n  {% if true %}\n  b\n  {% endif %}\nc\n", "a\n  b\nc"),
        ("{% set s = namespace(n=0) %}{% for i in v.a %}{% set s.n = s.n + 1 %}{% endfor %}{{ s.n }}", "3"),
        ("[{{ absent }}{{ v.absent }}]", "[]"),
        ("{{ dict(a=1).a }}", "1"),
    ],
)  # fmt: skip
def test_templates_find_what_transformers_offers_them(source: str, expected: str) -> None:
    assert render(source, v={"z": "<é> & '", "a": [1, None, True]}) == expected


def test_the_generation_tag_is_a_scope() -> None:
    """It marks text for training. In transformers it runs as a call block: what it sets ends with it."""
    assert render("{% set x = 0 %}{% generation %}{% set x = 1 %}{{ x }}{% endgeneration %}{{ x }}") == "10"


def test_loops_reach_into_the_generation_tag() -> None:
    source = (
        "{% for i in [1, 2, 3] %}{% generation %}{{ i }}/{{ loop.length }},"
        "{% if i == 2 %}{% break %}{% endif %}{% endgeneration %}{% endfor %}"
    )
    assert render(source) == "1/3,2/3,"


def test_a_refusal_carries_the_words_of_the_template() -> None:
    with pytest.raises(RequestError, match=r"^the template refuses this conversation: no \{system\} role$"):
        render("{{ raise_exception('no {system} role') }}")


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("{{ v + 'text' }}", "TypeError"),
        ("{{ absent.a.b }}", "UndefinedError: 'absent' is undefined"),
        ("{{ absent | tojson }}", "TypeError: .*Undefined is not JSON serializable"),
        ("{{ 1 // 0 }}", "ZeroDivisionError"),
        ("{% for i in range(10000000) %}{% endfor %}", "OverflowError: Range too big"),
        ("{% include 'other' %}", "TypeError: no loader"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "RecursionError"),
    ],
)
def test_a_failure_is_a_request_error(source: str, complaint: str) -> None:
    with pytest.raises(RequestError, match=rf"the template fails on this conversation \({complaint}"):
        render(source, v=None)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ (v | attr('__class__')).x }}",
        "{{ v['__class__'].x }}{{ v.__class__.x }}",
        "{{ raise_exception.__globals__.json }}",
        "{{ strftime_now.__closure__[0] }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ '{0.__class__.__mro__}'.format(v) }}",
        "{{ v.list.append(1) }}",
        "{{ v.update(a=1) }}",
        "{% set _ = v.clear() %}",
    ],
)
def test_what_a_template_may_not_do_is_stopped(source: str) -> None:
    value: dict[str, Any] = {"list": []}
    with pytest.raises(TokenizerError, match="the template does what a chat template may not: "):
        render(source, v=value)
    assert value == {"list": []}


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("\n{% if %}", "line 2: Expected an expression"),
        ("{{ 'a' }", "line 1: unexpected '}'"),
        ("{% unheard %}", "line 1: Encountered unknown tag 'unheard'"),
        ("{{ v | unheard }}", "line 1: No filter named 'unheard'"),
        ("{% generation %}", "line 1: Unexpected end of template"),
        ("{% break %}", "'break' outside loop"),
        ("{{ " + "9" * 5000 + " }}", "Exceeds the limit"),
        ("{{ " + "(" * 5000 + ")" * 5000 + " }}", "recursion"),
    ],
)
def test_what_is_no_template_is_named(source: str, complaint: str) -> None:
    with pytest.raises(TokenizerError, match=f"the template does not compile: .*{complaint}"):
        compiled(source)


@pytest.mark.parametrize(
    ("source", "asks"),
    [
        ("{% for m in messages %}{% if m['content'] is none %}{% endif %}{% endfor %}", True),
        ("{% if messages[0].content is not none %}{% endif %}", True),
        ("{{ 'x' if m.content is none }}", True),
        ("{% if content is none %}{% endif %}", False),
        ("{% if m.tool_calls is none or m.content is defined %}{% endif %}", False),
        ("{# m.content is none #}{{ 'm.content is none' }}", False),
    ],
)
def test_a_question_for_null_content_is_recognised(source: str, asks: bool) -> None:
    assert compiled(source).asks_for_null_content is asks
