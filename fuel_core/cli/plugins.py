"""``fuel plugins``: the plugins that are installed, and why some of them cannot be used."""

import dataclasses
from typing import Annotated, Any

import typer

import fuel_core
from fuel_core.cli.families import bundled_cell, cell, describe, installed_registry
from fuel_core.cli.terminal import print_json, print_table
from fuel_core.discovery import Plugin, PluginFailure
from fuel_core.registry import Registry


def plugins(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the installed plugins, broken ones too.

    For each that cannot be used the cause and a remedy; --debug adds the traceback.
    """
    registry = installed_registry()
    if as_json:
        print_json(_document(registry))
        return
    if registry.plugins:
        print_table(
            ("PLUGIN", "VERSION", "FAMILIES", "MODEL TYPES", "PRESETS", "BUNDLED", "FUEL-CORE", "IMPORT"),
            [_row(plugin, registry) for plugin in registry.plugins],
        )
    else:
        typer.echo("No usable plugin is installed; pip install fuel-qwen brings one.")
    for plugin in registry.plugins:
        if plugin.requirement is None:
            typer.echo(f"\n{plugin} does not say which fuel-core it needs, so a mismatch goes unnoticed.")
        if plugin.imports_torch:
            typer.echo(f"\n{plugin} imports torch to register itself, which slows every command down.")
    for clash in registry.clashes:
        typer.echo(f"\n{clash}; asking for it is an error until one of them is uninstalled.")
    for excluded in registry.excluded:
        typer.echo(f"\n{excluded} is left out by FUEL_PLUGINS.")
    for failure in registry.failures:
        _print_failure(failure, with_traceback=context.find_root().params["debug"])


def _row(plugin: Plugin, registry: Registry) -> tuple[str, ...]:
    return (
        plugin.distribution,
        plugin.version,
        cell(card.name for card in plugin.cards),
        cell(model_type for card in plugin.cards for model_type in card.model_types),
        cell(f"{card.name}:{tag}" for card in plugin.cards for tag in card.presets),
        cell(f"{card.name}: {bundled_cell(card, registry)}" for card in plugin.cards if card.bundled),
        plugin.requirement or "unstated",
        f"{plugin.import_seconds * 1000:.0f} ms",
    )


def _print_failure(failure: PluginFailure, *, with_traceback: bool) -> None:
    typer.echo(f"\n{failure} cannot be used (entry point {failure.entry_point!r}, {failure.stage})")
    typer.echo(f"  cause:  {failure.cause}")
    typer.echo(f"  remedy: {failure.remedy}")
    if with_traceback and failure.traceback:
        typer.echo(failure.traceback)


def _document(registry: Registry) -> dict[str, Any]:
    return {
        "fuel_core": fuel_core.__version__,
        "plugins": [
            {
                "distribution": plugin.distribution,
                "version": plugin.version,
                "entry_point": plugin.entry_point,
                "requirement": plugin.requirement,
                "import_ms": round(plugin.import_seconds * 1000, 1),
                "imports_torch": plugin.imports_torch,
                "families": [describe(card, registry) for card in plugin.cards],
            }
            for plugin in registry.plugins
        ],
        "failures": [dataclasses.asdict(failure) for failure in registry.failures],
        "clashes": [
            {
                "kind": clash.kind,
                "claimed": clash.claimed,
                "plugins": [str(plugin) for plugin in clash.plugins],
            }
            for clash in registry.clashes
        ],
        "excluded": list(registry.excluded),
    }
