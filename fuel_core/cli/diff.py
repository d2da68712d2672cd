"""``fuel diff``: what differs between the plans of two models."""

import contextlib
import sys
from itertools import groupby
from typing import Annotated

import typer

from fuel_core.cli.plan import short_value
from fuel_core.cli.terminal import print_json, print_table
from fuel_core.registry import Registry


def diff(
    a: Annotated[str, typer.Argument(help="A family, family:tag, ./folder, org/name or config.json file.")],
    b: Annotated[str, typer.Argument(help="The other one.")],
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with 1 when they differ, rather than always with 0.")
    ] = False,
    allow_unknown_keys: Annotated[
        bool,
        typer.Option("--allow-unknown-keys", help="Plan config.json files with keys nobody understands."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what differs between the plans of two models.

    Keys of config.json with the defaults of absent ones, plan, numerics, and the fate of keys; not the
    values of keys that change nothing. The exit status is 0 whether they differ or not, unless
    --exit-code asks for it.
    """
    with contextlib.redirect_stdout(sys.stderr):  # what a plugin prints is not part of the answer
        from fuel_core.inspection.plan_difference import differences
        from fuel_core.inspection.plan_report import read_report

        registry = Registry.discover()
        reports = [read_report(registry, ref, allow_unknown_keys=allow_unknown_keys) for ref in (a, b)]
        found = differences(*reports)
    sources = [str(report.reading.path) for report in reports]
    if as_json:
        print_json(
            {
                "a": sources[0],
                "b": sources[1],
                "equal": not found,
                "differences": [difference.as_dict() for difference in found],
            }
        )
    else:
        typer.echo(f"a: {sources[0]}\nb: {sources[1]}")
        if not found:
            typer.echo("\nThe plans are equal.")
        for section, members in groupby(found, key=lambda difference: difference.section):
            typer.echo()
            print_table(
                (section.upper(), "A", "B"),
                [(member.key, _side(member.a), _side(member.b)) for member in members],
            )
    if exit_code and found:
        raise typer.Exit(1)


def _side(value: object) -> str:
    from fuel_core.inspection.plan_difference import ABSENT

    return str(value) if value is ABSENT or isinstance(value, str) else short_value(value, longest=60)
