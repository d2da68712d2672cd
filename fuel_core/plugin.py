"""The plugin contract: what an installed distribution says to be found. Imports no torch.

A plugin is a module named by an entry point in the group ``fuel``. It implements one hook::

    from fuel_core import FamilyCard, hookimpl

    @hookimpl
    def fuel_families():
        return [FamilyCard(name="qwen2", ..., definition="fuel_qwen.qwen2:QWEN2")]

The module that holds the hook must import neither torch nor pydantic: it is imported by
``fuel families``. Everything heavy stands behind ``definition`` and is imported on first use.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import pluggy

from fuel_core.errors import PluginError

ENTRY_POINT_GROUP = "fuel"
HUB_REPO = re.compile(r"[A-Za-z0-9_][\w.-]*/[A-Za-z0-9_][\w.-]*", re.ASCII)

# A name stands before ":" and is no path in a reference, hence neither ":" nor "/" in it.
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
_TAG = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)
_DOTTED = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*"
_DEFINITION = re.compile(rf"{_DOTTED}:[A-Za-z_]\w*")
_BUNDLED = re.compile(rf"{_DOTTED}:[^/\s:][^\s:]*")

hookspec = pluggy.HookspecMarker("fuel")
hookimpl = pluggy.HookimplMarker("fuel")


@dataclass(frozen=True, kw_only=True)
class FamilyCard:
    """What is known of a model family before any of its code is imported.

    Attributes:
        name: the family's name, as in ``fuel_core.load(name)``.
        model_types: the values of ``model_type`` in config.json that this family claims.
        definition: where the :class:`~fuel_core.family.Family` stands, ``"package.module:NAME"``.
        summary: one line for a listing.
        source: where the architecture is published (paper, model card).
        aliases: further names for ``load``.
        presets: tag -> hub repository, for ``load("name:tag")``.
        bundled: the checkpoint folder that the wheel carries, as ``"package:folder"``, or None.

    Raises:
        PluginError: a field holds what discovery or a reference could never use.
    """

    name: str
    model_types: tuple[str, ...]
    definition: str
    summary: str
    source: str
    aliases: tuple[str, ...] = ()
    presets: Mapping[str, str] = field(default_factory=dict, hash=False)
    bundled: str | None = None

    def __post_init__(self) -> None:
        expected = {
            "name": (_matches(_NAME, self.name), "lower-case letters, digits and . _ -"),
            "model_types": (_strings(self.model_types) and self.model_types, "a tuple such as ('llama',)"),
            "aliases": (_strings(self.aliases, _NAME), "a tuple of names such as ('qwen',)"),
            "definition": (_matches(_DEFINITION, self.definition), "'package.module:NAME'"),
            "summary": (isinstance(self.summary, str), "one line of text"),
            "source": (isinstance(self.source, str), "one line of text"),
            "presets": (_presets(self.presets), "a mapping such as {'7b': 'organisation/repository'}"),
            "bundled": (self.bundled is None or _matches(_BUNDLED, self.bundled), "'package:folder' or None"),
        }
        for name, (holds, what) in expected.items():
            if not holds:
                found = getattr(self, name)
                raise PluginError(f"FamilyCard {self.name!r}: {name} is {found!r}; expected {what}")
        object.__setattr__(self, "presets", MappingProxyType(dict(self.presets)))

    def claims(self) -> tuple[tuple[str, str], ...]:
        """What no other card may claim: ("name", value) for name and aliases, ("model_type", value)."""
        names = dict.fromkeys((self.name, *self.aliases))
        return (
            *(("name", name) for name in names),
            *(("model_type", model_type) for model_type in dict.fromkeys(self.model_types)),
        )


def _matches(pattern: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _strings(value: object, pattern: re.Pattern[str] = re.compile(r"\S+")) -> bool:
    return isinstance(value, tuple) and all(_matches(pattern, item) for item in value)


def _presets(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        _matches(_TAG, tag) and _matches(HUB_REPO, repo) for tag, repo in value.items()
    )


@hookspec
def fuel_families() -> list[FamilyCard]:
    """Return the cards of the families that this plugin provides."""
    raise NotImplementedError  # a specification: pluggy calls the plugins' implementations


__all__ = ["ENTRY_POINT_GROUP", "HUB_REPO", "FamilyCard", "fuel_families", "hookimpl", "hookspec"]
