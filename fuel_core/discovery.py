"""Finds the installed plugins. What is broken is set aside with its cause and hides nobody.

Every entry point of the group ``fuel`` passes these stages in order; the first that fails ends it:

``requirement``   its distribution's own requirement on fuel-core holds (nothing is imported yet)
``import``        the object that it names can be imported
``registration``  pluggy knows its hooks and their arguments
``hook``          ``fuel_families()`` returns
``cards``         what it returned are :class:`~fuel_core.plugin.FamilyCard`

``FUEL_PLUGINS=a,b`` allows these distributions or entry points alone (empty: none), and
``FUEL_STRICT_PLUGINS=1`` raises the first failure.
"""

import os
import sys
import time
import traceback
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import Any, Literal

import pluggy
from packaging.utils import canonicalize_name

import fuel_core
from fuel_core import plugin as contract
from fuel_core.errors import PluginError
from fuel_core.installed import core_requirement, installed_entry_points, origin
from fuel_core.plugin import FamilyCard

Stage = Literal["requirement", "import", "registration", "hook", "cards", "allow list"]


@dataclass(frozen=True, kw_only=True)
class Plugin:
    """An entry point that works.

    Attributes:
        requirement: what its distribution asks of fuel-core; None if it asks nothing, so that a
            fuel-core that it was not made for cannot be told.
        import_seconds: how long its import took.
        imports_torch: its import loaded torch, which makes every command slow; False also where
            torch was loaded before.
    """

    distribution: str
    version: str
    entry_point: str
    requirement: str | None
    cards: tuple[FamilyCard, ...]
    import_seconds: float
    imports_torch: bool

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}"


@dataclass(frozen=True, kw_only=True)
class PluginFailure:
    """An entry point that cannot be used, or a name in the allow list that nothing installed has.

    Attributes:
        version: None if nothing is installed.
        cause: one line.
        traceback: the whole story; empty if no code failed.
        remedy: what the user can do.
    """

    distribution: str
    version: str | None
    entry_point: str
    stage: Stage
    cause: str
    traceback: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}" if self.version else self.distribution


@dataclass(frozen=True, kw_only=True)
class Discovery:
    """What was found, in the order of distribution names.

    Attributes:
        excluded: what the allow list leaves out, each as "distribution version".
    """

    plugins: tuple[Plugin, ...]
    failures: tuple[PluginFailure, ...]
    excluded: tuple[str, ...]


def discover(
    entry_points: Iterable[EntryPoint] | None = None,
    *,
    allow: Collection[str] | None = None,
    strict: bool | None = None,
) -> Discovery:
    """Try every entry point in the group ``fuel``.

    Args:
        entry_points: those to try; None takes the installed ones.
        allow: the distributions or entry points to try; None reads ``FUEL_PLUGINS``.
        strict: raise the first failure; None reads ``FUEL_STRICT_PLUGINS``.

    Raises:
        PluginError: strict, and a plugin cannot be used.
    """
    if entry_points is None:
        entry_points = installed_entry_points()
    candidates = sorted(entry_points, key=lambda entry_point: (*origin(entry_point), entry_point.name))
    allowed = _allowed(allow)
    failures = [] if allowed is None else _absent(allowed, candidates)
    strict = _strict_by_environment() if strict is None else strict
    if strict and failures:
        raise PluginError(f"{failures[0].cause}; {failures[0].remedy}")
    plugins: list[Plugin] = []
    excluded: dict[str, None] = {}
    seen: list[object] = []
    for candidate in candidates:
        if allowed is not None and not _names(candidate) & allowed:
            excluded[" ".join(origin(candidate))] = None
            continue
        outcome = _admit(candidate, seen, strict=strict)
        if isinstance(outcome, Plugin):
            plugins.append(outcome)
        elif outcome is not None:
            failures.append(outcome)
    return Discovery(plugins=tuple(plugins), failures=tuple(failures), excluded=tuple(excluded))


def _admit(candidate: EntryPoint, seen: list[object], *, strict: bool) -> Plugin | PluginFailure | None:
    """A plugin, or why it is none, or None for an object that another entry point already brought."""
    distribution, version = origin(candidate)
    without_torch = "torch" not in sys.modules
    stage: Stage = "requirement"
    try:
        requirement = core_requirement(candidate, fuel_core.__version__)
        stage, start = "import", time.perf_counter()
        loaded = candidate.load()
        import_seconds = time.perf_counter() - start
        if any(loaded is other for other in seen):
            return None
        seen.append(loaded)
        stage = "registration"
        manager = _registered(loaded)
        stage = "hook"
        answers = manager.hook.fuel_families()
        stage = "cards"
        cards = _checked_cards(answers)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # neither SystemExit nor the panic of a Rust extension is an Exception
        failure = PluginFailure(
            distribution=distribution,
            version=version,
            entry_point=candidate.name,
            stage=stage,
            cause=_cause(error),
            traceback="".join(traceback.format_exception(error)),
            remedy=_remedy(stage, distribution, error),
        )
        if strict:
            raise PluginError(
                f"plugin {failure} cannot be used: {failure.cause}; {failure.remedy}"
            ) from error
        return failure
    return Plugin(
        distribution=distribution,
        version=version,
        entry_point=candidate.name,
        requirement=requirement,
        cards=cards,
        import_seconds=import_seconds,
        imports_torch=without_torch and "torch" in sys.modules,
    )


def _registered(loaded: Any) -> pluggy.PluginManager:
    """A manager of this plugin alone: nothing to unregister, and no wrapper sees another's hooks."""
    manager = pluggy.PluginManager("fuel")
    manager.add_hookspecs(contract)
    manager.register(loaded)
    manager.check_pending()
    if not manager.hook.fuel_families.get_hookimpls():
        raise PluginError("it has no function fuel_families() marked with @hookimpl")
    return manager


def _checked_cards(answers: list[Any]) -> tuple[FamilyCard, ...]:
    if not answers:  # pluggy drops None
        raise PluginError("fuel_families() returned None, not a list of FamilyCard")
    cards: list[FamilyCard] = []
    for answer in answers:
        if not isinstance(answer, list | tuple):
            raise PluginError(f"fuel_families() returned a {type(answer).__name__}, not a list of FamilyCard")
        for card in answer:
            if not isinstance(card, FamilyCard):
                raise PluginError(f"fuel_families() returned a {type(card).__name__} among its FamilyCards")
            cards.append(card)
    claims = [claim for card in cards for claim in card.claims()]
    for kind, claimed in claims:
        if claims.count((kind, claimed)) > 1:
            raise PluginError(f"its cards claim the {kind} {claimed!r} twice")
    return tuple(cards)


def _allowed(allow: Collection[str] | None) -> frozenset[str] | None:
    """The canonical names of the allow list; None allows everything."""
    if allow is None:
        listed = os.environ.get("FUEL_PLUGINS")
        if listed is None:
            return None
        allow = [name.strip() for name in listed.split(",") if name.strip()]
    return frozenset(canonicalize_name(name) for name in allow)


def _names(candidate: EntryPoint) -> frozenset[str]:
    return frozenset(canonicalize_name(name) for name in (origin(candidate)[0], candidate.name))


def _absent(allowed: Collection[str], candidates: Collection[EntryPoint]) -> list[PluginFailure]:
    installed = {name for candidate in candidates for name in _names(candidate)}
    known = ", ".join(sorted({origin(candidate)[0] for candidate in candidates})) or "none"
    return [
        PluginFailure(
            distribution=name,
            version=None,
            entry_point=name,
            stage="allow list",
            cause=f"the allow list names {name!r}, but the installed plugins are: {known}",
            traceback="",
            remedy=f"pip install {name}, or take it out of the allow list (FUEL_PLUGINS)",
        )
        for name in sorted(set(allowed) - installed)
    ]


def _strict_by_environment() -> bool:
    return os.environ.get("FUEL_STRICT_PLUGINS", "").lower() not in {"", "0", "false", "no", "off"}


def _cause(error: BaseException) -> str:
    try:
        text = " ".join(str(error).split())
    except Exception:
        text = "(its message cannot be read)"
    return text if isinstance(error, PluginError) else f"{type(error).__name__}: {text}"


def _remedy(stage: Stage, distribution: str, error: BaseException) -> str:
    if stage == "requirement":
        return f"pip install --upgrade fuel-core {distribution}"
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"pip install --force-reinstall {distribution}: its module {error.name!r} is not there"
    return f"pip install --upgrade {distribution}, or pip uninstall it and tell its authors"
