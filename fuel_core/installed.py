"""What the metadata of installed distributions says about plugins, without importing one.

Source: packaging.python.org, "Entry points specification" and "Core metadata specifications" 2.4.
"""

import re
import warnings
from collections.abc import Iterator, Sequence
from importlib.metadata import Distribution, EntryPoint, distributions

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from fuel_core.errors import FuelWarning, PluginError
from fuel_core.plugin import ENTRY_POINT_GROUP


def installed_entry_points() -> Iterator[EntryPoint]:
    """The entry points in the group ``fuel`` of every distribution that an import would reach.

    One distribution may have several metadata folders: an interrupted upgrade leaves the old one
    beside the new, and each folder of ``sys.path`` may have its own. importlib.metadata takes the
    first that the file system lists; here the newest in the first folder counts, as its code runs.
    """
    by_name: dict[str, Distribution] = {}
    for distribution in distributions():
        if _entry_points(distribution):
            by_name.setdefault(canonicalize_name(_field(distribution, "Name")), distribution)
    for name, distribution in by_name.items():
        # None has the name of its folder where pip was killed while it uninstalled: ~uel_x.dist-info.
        copies = list(distributions(name=name)) or [distribution]
        reached = [copy for copy in copies if _folder(copy) == _folder(copies[0])]
        yield from _entry_points(max(reached, key=_version))


def origin(entry_point: EntryPoint) -> tuple[str, str]:
    """Name and version of the distribution that brought ``entry_point``."""
    if entry_point.dist is None:
        return entry_point.value, "(no distribution)"
    return _field(entry_point.dist, "Name"), _field(entry_point.dist, "Version")


def core_requirement(entry_point: EntryPoint, core_version: str) -> str | None:
    """What the distribution of ``entry_point`` asks of fuel-core; None if it asks nothing.

    Raises:
        PluginError: it asks for another fuel-core than ``core_version``.
    """
    asked: list[str] = []
    for text in (entry_point.dist.requires if entry_point.dist else None) or []:
        # By name first: a line that packaging cannot parse concerns us only if it is about us.
        if canonicalize_name(re.split(r"[^\w.-]", text.strip(), maxsplit=1)[0]) != "fuel-core":
            continue
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        if not requirement.specifier.contains(core_version, prereleases=True):
            raise PluginError(f"it requires {text}, but fuel-core {core_version} is installed")
        asked.append(str(requirement.specifier) or "any version")
    return ", ".join(asked) or None


def _entry_points(distribution: Distribution) -> Sequence[EntryPoint]:
    try:
        # The text first: parsing the entry points of all distributions takes longer than reading them.
        if f"[{ENTRY_POINT_GROUP}]" not in (distribution.read_text("entry_points.txt") or ""):
            return ()
        return tuple(distribution.entry_points.select(group=ENTRY_POINT_GROUP))
    except Exception as error:
        name = _field(distribution, "Name")
        warnings.warn(
            f"the entry points of {name} cannot be read, so any plugin in it is lost ({error}); reinstall it",
            FuelWarning,
            stacklevel=2,
        )
        return ()


def _field(distribution: Distribution, key: str) -> str:
    try:
        value = distribution.metadata[key]
    except Exception:  # newer Pythons raise where older ones answer None
        value = None
    return value or f"(unknown {key.lower()})"


def _folder(distribution: Distribution) -> str:
    return str(distribution.locate_file(""))


def _version(distribution: Distribution) -> Version:
    try:
        return Version(_field(distribution, "Version"))
    except InvalidVersion:
        return Version("0.dev0")
