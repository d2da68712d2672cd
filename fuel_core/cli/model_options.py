"""Options that say which model, how it is loaded and how it runs: spelt alike in every command."""

from typing import Annotated

import typer

from fuel_core.cli.key_value import key_values

LOADING, RUNNING = "Loading", "Running"
"""The panels of ``--help`` that list them."""

Ref = Annotated[str, typer.Argument(help="A family, family:tag, ./folder or org/name on the hub.")]

Revision = Annotated[
    str | None,
    typer.Option(help="Branch, tag or commit on the hub. [default: main]", rich_help_panel=LOADING),
]

Dtype = Annotated[
    str | None,
    typer.Option(help="Dtype of the weights. [default: as the checkpoint says]", rich_help_panel=LOADING),
]

Device = Annotated[
    str | None,
    typer.Option(
        help="cpu, cuda, cuda:1 ... [default: cuda where there is one, else cpu]", rich_help_panel=LOADING
    ),
]

FamilyOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="KEY=VALUE",
        help="An option of the family; null is no value. Repeatable.",
        rich_help_panel=LOADING,
    ),
]

AllowUnknownKeys = Annotated[
    bool,
    typer.Option(
        "--allow-unknown-keys",
        help="Take a config.json with keys nobody understands.",
        rich_help_panel=LOADING,
    ),
]

BackendName = Annotated[
    str | None,
    typer.Option(
        help="eager, compiled or cudagraph. [default: cudagraph on CUDA, else eager]",
        rich_help_panel=RUNNING,
    ),
]


def option_choices(texts: list[str] | None) -> dict[str, str | None]:
    """The choices that ``--option KEY=VALUE`` spells; the family reads each by its own type."""
    values = key_values("--option", texts)
    return {key: None if value == "null" else value for key, value in values.items()}
