"""What is printed, and how: text for people, aligned or decorated, and JSON for tools."""

import json
import os
import sys
from collections.abc import Sequence
from typing import Any, TextIO

import typer


def decorated(stream: TextIO) -> bool:
    """Whether colours and boxes belong on ``stream``: a capable terminal, and NO_COLOR unset."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def print_json(value: Any) -> None:
    """Print ``value`` as one JSON document on stdout."""
    typer.echo(json.dumps(value, indent=2))


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under a header: a rich table on a terminal, else columns that never wrap."""
    if decorated(sys.stdout):
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, header_style="bold", pad_edge=False)
        for title in header:
            table.add_column(title, overflow="fold")
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))  # Text: a cell may hold brackets, which are markup
        Console().print(table)
        return
    widths = [max(len(cell) for cell in column) for column in zip(header, *rows, strict=True)]
    for row in (header, *rows):
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def print_notice(kind: str, message: str, colour: str) -> None:
    """Print ``kind: message`` on stderr, so that a pipe carries results alone."""
    label = f"{kind}:"
    if decorated(sys.stderr):
        label = typer.style(label, fg=colour, bold=True)
    typer.echo(f"{label} {message}", err=True)
