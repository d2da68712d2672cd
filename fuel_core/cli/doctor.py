"""``fuel doctor``: what works here and what does not."""

import contextlib
import sys
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from fuel_core.cli.byte_count import byte_count
from fuel_core.cli.families import installed_registry
from fuel_core.cli.terminal import decorated, print_json
from fuel_core.inspection.examination import examination
from fuel_core.inspection.finding import Finding

_COLOURS = {"ok": "green", "failed": "red", "skipped": "yellow"}


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Check this installation, part by part.

    Versions, hub cache, plugins, devices, threads, kernels, the code of every family; then every bundled
    checkpoint generates two tokens. Each check survives the failure of any other. The exit status is 1 when
    something is broken.
    """
    findings = []
    for finding in _without_output(examination(installed_registry)):
        findings.append(finding)
        if not as_json:
            _print(finding)
            sys.stdout.flush()  # should the next check end the process, this much is known
    failed = [finding.name for finding in findings if finding.status == "failed"]
    if as_json:
        print_json({"ok": not failed, "checks": [finding.as_dict() for finding in findings]})
    else:
        typer.echo(f"\nbroken: {', '.join(failed)}" if failed else "\nnothing is broken")
    if failed:
        raise typer.Exit(1)


def _without_output(findings: Iterator[Finding]) -> Iterator[Finding]:
    """The same findings; what a plugin or library prints while a check runs goes to stderr."""
    while True:
        with contextlib.redirect_stdout(sys.stderr):
            finding = next(findings, None)
        if finding is None:
            return
        yield finding


def _print(finding: Finding) -> None:
    status: str = finding.status
    if decorated(sys.stdout):
        status = typer.style(status, fg=_COLOURS[finding.status], bold=True)
    typer.echo(f"{finding.name}: {status}{f' ({finding.skipped})' if finding.skipped else ''}")
    for name, text in _lines(finding.facts):
        typer.echo(f"  {name:<20} {text}")
    for problem in finding.problems:
        typer.echo(f"  cause:  {problem.cause}\n  remedy: {problem.remedy}")
    for note in finding.notes:
        typer.echo(f"  note: {note}")


def _lines(facts: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in facts.items():
        match value:
            case Mapping():
                yield from _lines(value, f"{prefix}{key} ")
            case [dict(), *_]:
                for number, item in enumerate(value):
                    yield from _lines(item, f"{prefix}{key} {number} ")
            case _:
                yield f"{prefix}{key}", _text(key, value)


def _text(key: str, value: Any) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int() if key.endswith("bytes"):
            return byte_count(value)
        case list() | tuple():
            return ", ".join(map(str, value)) or "none"
        case str() if value != " ".join(value.split()):  # what a model wrote may hold line breaks
            return repr(value)
    return str(value)
