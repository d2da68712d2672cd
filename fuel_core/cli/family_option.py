"""``--option KEY=VALUE``: what a family lets a user choose, on the command line."""

from typing import Any

import typer

from fuel_core.cli.key_value import key_values


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
    values = key_values("--option", texts)
    return {key: None if value == "null" else value for key, value in values.items()}
