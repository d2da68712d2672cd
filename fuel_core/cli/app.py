"""The ``fuel`` command: its global options, and how it ends when something goes wrong.

A command is a function in a file of its own, registered below. This module imports all of them
for ``fuel --help``, so such a file imports torch, or what imports torch, inside its function.

Exit status: 0 done; 1 an error that fuel names (``error: ...`` on stderr); 2 wrong usage;
130 interrupted.
"""

import io
import sys
import warnings
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import fuel_core
from fuel_core.cli.chat import chat
from fuel_core.cli.diff import diff
from fuel_core.cli.doctor import doctor
from fuel_core.cli.families import families
from fuel_core.cli.plan import plan
from fuel_core.cli.plugins import plugins
from fuel_core.cli.run import run
from fuel_core.cli.terminal import decorated, print_notice
from fuel_core.errors import FuelError, FuelWarning


class FrontDoor(TyperGroup):
    """The group of all commands: one place for errors, warnings and ``--debug``."""

    # Any: the context's class is click's or typer's own copy of it, depending on typer's version.
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read ``--debug`` wherever it stands before ``--``: it is wanted when a command has failed."""
        ours = args[: args.index("--")] if "--" in args else args
        if "--debug" in ours:
            args = ["--debug", *(arg for arg in ours if arg != "--debug"), *args[len(ours) :]]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; show a FuelError as one message unless ``--debug`` asks for its traceback."""
        with warnings.catch_warnings():
            warnings.showwarning = _showing_ours_as_notices(warnings.showwarning)
            try:
                return super().invoke(ctx)
            except FuelError as error:
                if ctx.params["debug"]:
                    raise
                print_notice("error", str(error), "red")
                raise typer.Exit(1) from error
            except BrokenPipeError:
                raise  # whoever reads our output has seen enough: not an error
            except OSError as error:
                if ctx.params["debug"]:
                    raise
                print_notice("error", f"{error.filename or 'output'}: {error.strerror or error}", "red")
                raise typer.Exit(1) from error


def _examples(*lines: str) -> str:
    return "\n\n".join(("Examples:", *lines))


app = typer.Typer(
    name="fuel",
    cls=FrontDoor,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    epilog=_examples(
        'fuel run qwen2 "In the beginning"',
        "fuel chat Qwen/Qwen2.5-0.5B-Instruct",
        "fuel plan qwen2 --context 1024",
        "fuel families",
        "fuel plugins --json",
    ),
)
app.command(epilog=_examples("fuel families", "fuel families --json"))(families)
app.command(epilog=_examples("fuel plugins", "fuel plugins --json"))(plugins)
app.command(
    epilog=_examples(
        "fuel plan qwen2", "fuel plan ./config.json --context 32768 --rows 4", "fuel plan qwen2:7b"
    )
)(plan)
app.command(epilog=_examples("fuel diff qwen2 ./other/config.json", "fuel diff qwen2:7b qwen2:0.5b"))(diff)
app.command(epilog=_examples("fuel doctor", "fuel doctor --json"))(doctor)
app.command(
    epilog=_examples(
        'fuel run qwen2 "In the beginning"',
        'fuel run ./folder "Once" --temperature 0.8 --seed 7 --n 3 --logprobs 3 --json',
        "fuel run qwen2 --input prompts.jsonl --output answers.jsonl",
    )
)(run)
app.command(epilog=_examples("fuel chat qwen2:0.5b", 'fuel chat ./folder --system "Be brief."'))(chat)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"fuel {fuel_core.__version__}")
        raise typer.Exit


@app.callback()
def fuel(
    debug: Annotated[
        bool, typer.Option("--debug", envvar="FUEL_DEBUG", help="Show the traceback of an error.")
    ] = False,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Run open-weight language models that pip-installed plugins describe."""


def _showing_ours_as_notices(show: Callable[..., None]) -> Callable[..., None]:
    """``warnings.showwarning`` in which a FuelWarning, which is for the user, names no line of code."""

    def show_warning(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if issubclass(category, FuelWarning):
            print_notice("warning", str(message), "yellow")
        else:
            show(message, category, *place, **more)

    return show_warning


def main() -> None:
    """The entry point of the console script."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a model may write what the terminal cannot show
    if not decorated(sys.stdout):
        app.rich_markup_mode = None
    app(prog_name="fuel")
