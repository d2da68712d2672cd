"""What to tell a user whose family or model type no usable plugin provides."""

import difflib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from fuel_core.catalogue import package_for
from fuel_core.discovery import PluginFailure

if TYPE_CHECKING:
    from fuel_core.registry import Registry


def on_unknown_name(name: str, registry: "Registry") -> str:
    """The message for a reference or name that resolves to nothing."""
    return "; ".join(
        [f"no installed family is called {name!r}", *closest(name, registry), *_sources(name, registry)]
    )


def on_unknown_model_type(model_type: str, registry: "Registry") -> str:
    """The message for a config.json whose ``model_type`` nobody claims."""
    parts = [f"no installed family reads model_type {model_type!r}", *_sources(model_type, registry)]
    if package_for(model_type) is None:
        parts.append(
            "no known package provides it, but a plugin can: python -m pydoc fuel_core.plugin says how"
        )
    return "; ".join(parts)


def closest(name: str, registry: "Registry") -> Iterator[str]:
    """The installed names that resemble ``name``, or all of them if none does."""
    names = sorted(set(registry.names))
    matches = difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.6)
    if matches:
        yield f"closest: {', '.join(matches)}"
    elif names:
        yield f"installed: {', '.join(names)}"
    else:
        yield "no family is installed"


def _sources(wanted: str, registry: "Registry") -> Iterator[str]:
    """Where ``wanted`` could come from: a known package, or a plugin that is broken or left out."""
    package = package_for(wanted)
    likely = [failure for failure in registry.failures if _may_provide(failure, wanted, package)]
    for failure in likely:
        yield f"{failure} may provide it but cannot be used: {failure.cause} ({failure.remedy})"
    if package is not None and not any(_is(package, failure.distribution) for failure in likely):
        excluded = [left_out for left_out in registry.excluded if _is(package, left_out.split()[0])]
        installed = [plugin for plugin in registry.plugins if _is(package, plugin.distribution)]
        if excluded:
            yield f"{excluded[0]} is installed, but the allow list (FUEL_PLUGINS) leaves it out"
        elif installed:
            yield f"{installed[0]} does not provide it; a newer one may: pip install --upgrade {package}"
        else:
            yield f"pip install {package} provides it"
    others = [str(failure) for failure in registry.failures if failure not in likely]
    if others:
        yield f"not usable, for reasons that `fuel plugins` gives: {', '.join(others)}"


def _may_provide(failure: PluginFailure, wanted: str, package: str | None) -> bool:
    """Whether a plugin that could not say what it provides sounds like ``wanted``."""
    if package is not None and _is(package, failure.distribution):
        return True
    stem = re.split(r"[^a-z]", wanted.lower(), maxsplit=1)[0]
    return len(stem) > 2 and stem in f"{failure.distribution} {failure.entry_point}".lower()


def _is(package: str, distribution: str) -> bool:
    return canonicalize_name(distribution) == package
