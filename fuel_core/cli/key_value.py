"""Options that are spelt KEY=VALUE and may be repeated."""

import json
from collections.abc import Sequence
from typing import Any

import typer


def key_values(option: str, texts: Sequence[str] | None) -> dict[str, str]:
    """The values by their keys.

    Raises:
        typer.BadParameter: a text is no KEY=VALUE, or a key is given twice.
    """
    values: dict[str, str] = {}
    for text in texts or []:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise typer.BadParameter(f"{option} {text!r} is no KEY=VALUE")
        if key in values:
            raise typer.BadParameter(f"{option} {key} is given twice")
        values[key] = value
    return values


def json_or_text(option: str, text: str) -> Any:
    """``false``, ``3`` or ``[1]`` as what they are in JSON, anything else as the text that it is.

    Raises:
        typer.BadParameter: Python's spelling of a JSON value, which as text would be true.
    """
    if text in ("True", "False", "None"):
        spelt = "null" if text == "None" else text.lower()
        raise typer.BadParameter(f"{option} has the value {text}; values are JSON: write {spelt}")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
