"""``fuel families``: the model families that are installed."""

import contextlib
import dataclasses
import sys
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from fuel_core.cli.terminal import print_json, print_notice, print_table
from fuel_core.errors import PluginError
from fuel_core.plugin import FamilyCard
from fuel_core.registry import Registry


def families(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List the installed model families.

    Each with its aliases, the model types that it reads, its presets and the plugin it comes from.
    """
    registry = installed_registry()
    if as_json:
        print_json(
            {
                "families": [describe(card, registry) for card in registry.cards],
                "failures": [dataclasses.asdict(failure) for failure in registry.failures],
            }
        )
    elif registry.cards:
        print_table(
            ("FAMILY", "ALIASES", "MODEL TYPES", "PRESETS", "BUNDLED", "FROM", "SUMMARY"),
            [
                (
                    card.name,
                    cell(card.aliases),
                    cell(card.model_types),
                    cell(card.presets),
                    bundled_cell(card, registry),
                    str(registry.provider(card)),
                    card.summary,
                )
                for card in registry.cards
            ],
        )
    else:
        print_notice("note", "no family is installed; pip install fuel-qwen brings some", "cyan")
    for clash in registry.clashes:
        print_notice(
            "warning", f"{clash}; asking for it is an error until one of them is uninstalled", "yellow"
        )
    if registry.failures:
        names = ", ".join(str(failure) for failure in registry.failures)
        print_notice("warning", f"not usable: {names}; `fuel plugins` says why and what to do", "yellow")


def installed_registry() -> Registry:
    """What is installed, broken plugins quarantined whatever FUEL_STRICT_PLUGINS says.

    A listing is where a user looks when a plugin is broken, so it never ends with that plugin's
    error; and what a plugin prints when it is imported does not mix with the listing on stdout.
    """
    with contextlib.redirect_stdout(sys.stderr):
        return Registry.discover(strict=False)


def describe(card: FamilyCard, registry: Registry) -> dict[str, Any]:
    """A family for JSON; ``bundled`` says whether a checkpoint is there, not whether one was promised."""
    plugin = registry.provider(card)
    problem = bundled_problem(card, registry)
    return {
        "name": card.name,
        "aliases": list(card.aliases),
        "model_types": list(card.model_types),
        "summary": card.summary,
        "source": card.source,
        "presets": dict(card.presets),
        "bundled": card.bundled is not None and problem is None,
        "bundled_problem": problem,
        "distribution": plugin.distribution,
        "version": plugin.version,
    }


def bundled_problem(card: FamilyCard, registry: Registry) -> str | None:
    """Why the checkpoint that ``card`` promises is not there; None if it is, or if none is promised."""
    if card.bundled is None:
        return None
    try:
        registry.bundled_folder(card)
    except PluginError as error:
        return str(error)
    return None


def bundled_cell(card: FamilyCard, registry: Registry) -> str:
    """The bundled checkpoint for a table."""
    if card.bundled is None:
        return "-"
    return "missing" if bundled_problem(card, registry) else "yes"


def cell(values: Iterable[str]) -> str:
    """Several values for one cell of a table."""
    return ", ".join(values) or "-"
