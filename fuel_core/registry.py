"""The families that installed plugins provide, by name, alias and model type.

::

    registry = Registry.discover()
    card = registry.card("qwen2")             # light: what the plugin says of itself
    family = registry.definition(card)        # heavy: imports the family's code, and torch

Two plugins that claim one name or model type leave each other's other families alone; the clash is
an error only for whoever asks for what both claim.
"""

import importlib
import importlib.resources
import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TYPE_CHECKING

from fuel_core.advice import on_unknown_model_type, on_unknown_name
from fuel_core.discovery import Plugin, PluginFailure, discover
from fuel_core.errors import FamilyClash, PluginError, UnknownFamily
from fuel_core.plugin import FamilyCard
from fuel_core.reference import Reference, resolve

if TYPE_CHECKING:
    from fuel_core.family import Family


@dataclass(frozen=True, kw_only=True)
class Clash:
    """One name or model type that several plugins claim."""

    kind: str
    claimed: str
    plugins: tuple[Plugin, ...]

    def __str__(self) -> str:
        claimants = " and ".join(str(plugin) for plugin in self.plugins)
        return f"the {self.kind} {self.claimed!r} is claimed by {claimants}"


@dataclass(frozen=True, kw_only=True)
class Registry:
    """What is installed and works, and what is installed and does not.

    Attributes:
        plugins: the plugins that work.
        failures: those that do not, with cause and remedy.
        excluded: what the allow list leaves out, each as "distribution version".
    """

    plugins: tuple[Plugin, ...]
    failures: tuple[PluginFailure, ...] = ()
    excluded: tuple[str, ...] = ()

    @classmethod
    def discover(
        cls,
        entry_points: Iterable[EntryPoint] | None = None,
        *,
        allow: Collection[str] | None = None,
        strict: bool | None = None,
    ) -> "Registry":
        """The registry of this environment; see :func:`fuel_core.discovery.discover`.

        Raises:
            PluginError: strict, and a plugin cannot be used.
        """
        found = discover(entry_points, allow=allow, strict=strict)
        return cls(plugins=found.plugins, failures=found.failures, excluded=found.excluded)

    @property
    def cards(self) -> tuple[FamilyCard, ...]:
        """Every family of every plugin that works, those that clash too."""
        return tuple(card for plugin in self.plugins for card in plugin.cards)

    @property
    def names(self) -> tuple[str, ...]:
        """Every name and alias that :meth:`card` knows."""
        return tuple(name for card in self.cards for name in (card.name, *card.aliases))

    @property
    def clashes(self) -> tuple[Clash, ...]:
        """Everything that more than one plugin claims."""
        claims = dict.fromkeys(claim for card in self.cards for claim in card.claims())
        claimants = {claim: [plugin for plugin, _ in self._claimants(*claim)] for claim in claims}
        return tuple(
            Clash(kind=kind, claimed=claimed, plugins=tuple(plugins))
            for (kind, claimed), plugins in claimants.items()
            if len(plugins) > 1
        )

    def card(self, name: str) -> FamilyCard:
        """The family called ``name``, by its name or an alias.

        Raises:
            UnknownFamily: no installed plugin provides it.
            FamilyClash: more than one does.
        """
        card = self._sole_claimant("name", name)
        if card is None:
            raise UnknownFamily(on_unknown_name(name, self))
        return card

    def card_for_model_type(self, model_type: str) -> FamilyCard:
        """The family that reads a config.json with this ``model_type``.

        Raises:
            UnknownFamily: no installed plugin claims it; the message names the package that does.
            FamilyClash: more than one does.
        """
        card = self._sole_claimant("model_type", model_type)
        if card is None:
            raise UnknownFamily(on_unknown_model_type(model_type, self))
        return card

    def provider(self, card: FamilyCard) -> Plugin:
        """The plugin of this registry whose card this is."""
        found = [plugin for plugin in self.plugins if any(own is card for own in plugin.cards)]
        assert found, f"the card {card.name!r} is of another registry"
        return found[0]

    def family(self, name: str) -> "Family":
        """The definition of the family called ``name``; imports its code, and torch.

        Raises:
            UnknownFamily, FamilyClash: as :meth:`card`.
            PluginError: its code cannot be imported or is no Family.
        """
        return self.definition(self.card(name))

    def definition(self, card: FamilyCard) -> "Family":
        """The Family that ``card`` stands for; imports its code, and torch.

        Raises:
            PluginError: its code cannot be imported or is no Family of this name.
        """
        module, _, attribute = card.definition.partition(":")
        asked = f"{self.provider(card)}: the definition {card.definition!r} of the family {card.name!r}"
        with _code_of_others(f"{asked} cannot be imported"):
            found = getattr(importlib.import_module(module), attribute)
        # Told by its name: the class Family stands above this module, and imports run one way.
        found_name = getattr(found, "name", None)
        if found_name != card.name:
            raise PluginError(
                f"{asked} is a {type(found).__name__} called {found_name!r}; "
                f"expected a Family called {card.name!r}"
            )
        return found

    def bundled_folder(self, card: FamilyCard) -> Path:
        """The folder of the checkpoint that the wheel of ``card`` carries.

        Raises:
            PluginError: the card names none, or it is not there.
        """
        plugin = self.provider(card)
        if card.bundled is None:
            raise PluginError(f"{plugin}: the family {card.name!r} carries no checkpoint")
        package, _, folder = card.bundled.partition(":")
        asked = f"{plugin}: the checkpoint {card.bundled!r} of the family {card.name!r}"
        with _code_of_others(f"{asked} has no package"):
            found = importlib.resources.files(package).joinpath(folder)
        if not isinstance(found, Path) or not found.is_dir():
            raise PluginError(
                f"{asked} is no folder at {found}; pip install --force-reinstall {plugin.distribution}"
            )
        return found

    def resolve(self, reference: str | os.PathLike[str]) -> Reference:
        """What ``reference`` names; see :func:`fuel_core.reference.resolve`.

        Raises:
            UnknownFamily: it names nothing.
            FamilyClash: several plugins claim the name.
            RequestError: it names something that is not there: a tag, a folder, a bundled checkpoint.
        """
        return resolve(reference, self)

    def _claimants(self, kind: str, claimed: str) -> list[tuple[Plugin, FamilyCard]]:
        return [
            (plugin, card)
            for plugin in self.plugins
            for card in plugin.cards
            if (kind, claimed) in card.claims()
        ]

    def _sole_claimant(self, kind: str, claimed: str) -> FamilyCard | None:
        claimants = self._claimants(kind, claimed)
        if len(claimants) > 1:
            clash = Clash(kind=kind, claimed=claimed, plugins=tuple(plugin for plugin, _ in claimants))
            raise FamilyClash(f"{clash}; pip uninstall one, or list in FUEL_PLUGINS those to use")
        return claimants[0][1] if claimants else None


@contextmanager
def _code_of_others(asked: str) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a module may call sys.exit(), and a Rust extension may panic
        raise PluginError(f"{asked}: {type(error).__name__}: {error}") from error
