"""What a reference such as ``qwen2``, ``qwen2:0.5b``, ``./folder`` or ``Qwen/Qwen2.5-0.5B`` names.

In this order:

1. a path object, or text that starts with ``/``, ``~``, ``./`` or ``../``: that folder and nothing else
2. an installed family's name or alias: the checkpoint that its wheel carries
3. ``name:tag`` with an installed name: one of the family's presets on the hub
4. a folder that holds a config.json; a file is refused
5. ``organisation/repository``: a repository on the hub

So a folder never hides an installed family, and what ``load("qwen2")`` gives does not depend on the
working directory; a folder of that name that looks like a checkpoint is warned about.
"""

import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from fuel_core.advice import on_unknown_name
from fuel_core.errors import FuelWarning, RequestError, UnknownFamily
from fuel_core.foreign_format import NO_GGUF, foreign_format
from fuel_core.plugin import HUB_REPO, FamilyCard

if TYPE_CHECKING:
    from fuel_core.registry import Registry


@dataclass(frozen=True, kw_only=True)
class Bundled:
    """The checkpoint that a family's wheel carries; ``Registry.bundled_folder(card)`` is its folder."""

    card: FamilyCard


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A hub repository that a family names."""

    card: FamilyCard
    tag: str
    repo: str


@dataclass(frozen=True, kw_only=True)
class Folder:
    """A folder of this machine."""

    path: Path


@dataclass(frozen=True, kw_only=True)
class HubRepo:
    """A repository of the hub."""

    repo: str


Reference: TypeAlias = Bundled | Preset | Folder | HubRepo


def resolve(reference: str | os.PathLike[str], registry: "Registry") -> Reference:
    """What ``reference`` names, by the rules above. Asks the file system, never the network.

    Raises:
        UnknownFamily: it names nothing.
        FamilyClash: several plugins claim the name.
        RequestError: it is neither text nor a path, or names something that is not there: a tag, a folder, a
            bundled checkpoint.
    """
    if not isinstance(reference, str | os.PathLike):
        raise RequestError(
            f"{reference!r} ({type(reference).__name__}) names no model; give a family, a folder or a hub "
            "repository, as text or as a path"
        )
    if not isinstance(reference, str) or _is_path(reference):
        return _folder(Path(os.path.expanduser(reference)))
    if not reference.strip():
        raise RequestError("an empty reference names no model; give a family, a folder or a hub repository")
    name, colon, tag = reference.partition(":")
    if name in registry.names:
        card = registry.card(name)
        return _preset(card, tag) if colon else _bundled(card, reference, registry)
    if _is_checkpoint(reference):
        return Folder(path=Path(reference))
    if os.path.isfile(reference):  # before the hub, which would be asked for "folder/config.json"
        return _folder(Path(reference))
    if HUB_REPO.fullmatch(reference):
        return HubRepo(repo=reference)
    raise UnknownFamily(_unknown(reference, name, registry))


def _is_path(reference: str) -> bool:
    return reference in {".", ".."} or reference.startswith(("/", "~", "./", "../"))


# os.path, not Path: a reference may be too long for a path, or hold a null, without being an error.
def _is_checkpoint(folder: str) -> bool:
    return os.path.isfile(os.path.join(folder, "config.json"))


def _folder(path: Path) -> Folder:
    if not os.path.lexists(path):
        raise RequestError(f"there is no folder {path} (working directory: {Path.cwd()})")
    if not os.path.isdir(path):
        instead = f"name the folder of config.json and the weights, such as {path.parent}"
        raise RequestError(
            f"{path} is no folder but a file; {NO_GGUF if path.suffix == '.gguf' else instead}"
        )
    return Folder(path=path)


def _bundled(card: FamilyCard, reference: str, registry: "Registry") -> Bundled:
    if card.bundled is None:
        raise RequestError(
            f"the family {card.name!r} ({registry.provider(card)}) carries no checkpoint; "
            f"name a folder, a hub repository or a preset ({_presets(card)})"
        )
    if _is_checkpoint(reference):
        warnings.warn(
            f"{reference!r} is the installed family, not the folder beside it; ./{reference} is the folder",
            FuelWarning,
            stacklevel=4,  # resolve, Registry.resolve and whoever called it
        )
    return Bundled(card=card)


def _preset(card: FamilyCard, tag: str) -> Preset:
    if tag not in card.presets:
        raise RequestError(f"the family {card.name!r} has no preset {tag!r}; presets: {_presets(card)}")
    return Preset(card=card, tag=tag, repo=card.presets[tag])


def _presets(card: FamilyCard) -> str:
    return ", ".join(f"{card.name}:{tag}" for tag in card.presets) or "none"


def _unknown(reference: str, name: str, registry: "Registry") -> str:
    if os.path.exists(reference):
        known = foreign_format(os.listdir(reference)) if os.path.isdir(reference) else ""
        lies = "what lies there is no folder with a config.json"
        return f"{reference!r} is no installed family, and {lies}{known}"
    if "/" in reference:
        return (
            f"{reference!r} is neither a folder with a config.json nor a hub repository 'organisation/name'"
        )
    return f"{on_unknown_name(name, registry)}; a folder is written ./{name}"
