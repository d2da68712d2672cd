"""``--option KEY=VALUE``: what a family lets a user choose, on the command line."""

from typing import Any

import typer


# Any: as typer.Option itself, whose result stands in an annotation.
def family_option(panel: str | None = None) -> Any:
    """The declaration of the option; ``panel`` is where ``--help`` lists it."""
    return typer.Option(
        "--option",
        metavar="KEY=VALUE",
        help="An option of the family; null is no value. Repeatable.",
        rich_help_panel=panel,
    )


def option_choices(texts: list[str] | None) -> dict[str, str | None]:
    """The choices that ``--option KEY=VALUE`` spells; the family reads each by its own type."""
    choices: dict[str, str | None] = {}
    for text in texts or []:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise typer.BadParameter(f"--option {text!r} is no KEY=VALUE")
        if key in choices:
            raise typer.BadParameter(f"--option {key} is given twice")
        choices[key] = None if value == "null" else value
    return choices
