"""``fuel chat``: a conversation on the terminal."""

import io
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fuel_core.cli.key_value import json_or_text, key_values
from fuel_core.cli.model_options import (
    AllowUnknownKeys,
    BackendName,
    Device,
    Dtype,
    FamilyOptions,
    Ref,
    Revision,
    option_choices,
)
from fuel_core.cli.terminal import print_notice
from fuel_core.errors import CapacityError, FuelError, RequestError

if TYPE_CHECKING:
    from fuel_core.generate.chat import Conversation

HELP = """\
/reset         forget the conversation
/system TEXT   begin anew with a system message
/save FILE     write the conversation as JSON
/quit, /exit   end the program
/help          this list
A line that ends in \\ goes on in the next one. Ctrl-C stops an answer, Ctrl-D ends the program."""


def chat(
    ref: Ref,
    system: Annotated[str | None, typer.Option(help="A system message to begin with.")] = None,
    template: Annotated[
        list[str] | None,
        typer.Option(
            "--template",
            metavar="KEY=VALUE",
            help="What else the template reads, such as enable_thinking=false. Repeatable.",
        ),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="At most this many tokens an answer. [default: 512, or what the conversation leaves]",
        ),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            help="0 takes the most probable token. [default: as the checkpoint's generation_config.json "
            "says if it samples, else 0.7]"
        ),
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(help="Sample from the smallest set of this mass. [default: likewise, else 0.95]"),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Makes sampling repeatable.")] = None,
    revision: Revision = None,
    dtype: Dtype = None,
    device: Device = None,
    option: FamilyOptions = None,
    allow_unknown_keys: AllowUnknownKeys = False,
    backend: BackendName = None,
) -> None:
    """Talk with a model that has a chat template.

    Messages may be piped in, one a line; the exit status is 1 then if one of them was refused.
    """
    choices = option_choices(option)
    variables = {
        key: json_or_text("--template", text) for key, text in key_values("--template", template).items()
    }
    from fuel_core.cli.loading_options import LoadingOptions
    from fuel_core.cli.sampling_options import SamplingOptions
    from fuel_core.generate.chat import Conversation
    from fuel_core.generate.settings import GenerationSettings
    from fuel_core.text.utf8 import require_utf8

    if system is not None:
        system = require_utf8(system, "--system")
    sampling = SamplingOptions(temperature=temperature, top_p=top_p, seed=seed)
    model = LoadingOptions(
        ref=ref,
        revision=revision,
        dtype=dtype,
        device=device,
        options=choices,
        allow_unknown_keys=allow_unknown_keys,
    ).load(backend=backend)
    # refuses a checkpoint without a template, and what the template never reads, before the first question
    model.chat_prompt([{"role": "user", "content": "?"}], template_variables=variables)
    # the most probable answers soon repeat each other
    chosen = sampling.of(model, temperature=0.7, top_p=0.95)
    settings = GenerationSettings(max_tokens=max_tokens, sampling=chosen)
    conversation = Conversation(model, settings, system=system, backend=backend, template_variables=variables)
    if not _talk(conversation) and not sys.stdin.isatty():
        raise typer.Exit(1)


def _talk(conversation: "Conversation") -> bool:
    """Answer messages to the end of input; return whether none was refused."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")  # bytes that are no text are refused as a message
    if sys.stdin.isatty():
        import readline  # noqa: F401  # gives input() its history and line editing

        typer.echo("/help tells the commands.", err=True)
    refused = 0
    while (text := _read()) not in (None, "/quit", "/exit"):
        try:
            _command(conversation, text) if text.startswith("/") else _answer(conversation, text)
        except FuelError as error:
            refused += 1
            print_notice("error", str(error), "red")
    return not refused


def _read() -> str | None:
    """The next message, or None at the end of input; Ctrl-C drops a message that is being written."""
    prompt = "> " if sys.stdin.isatty() else ""
    lines: list[str] = []
    while True:
        try:
            line = input(prompt if not lines else "  " if prompt else "")
        except EOFError:
            return None
        except KeyboardInterrupt:
            typer.echo()
            lines = []
            continue
        lines.append(line.removesuffix("\\"))
        if not line.endswith("\\") and (text := "\n".join(lines).strip()):
            return text
        lines = lines if line.endswith("\\") else []


def _answer(conversation: "Conversation", text: str) -> None:
    from fuel_core.text.utf8 import require_utf8

    answer = conversation.ask(require_utf8(text, "the message"))
    try:
        for piece in answer:
            typer.echo(piece, nl=False)
            sys.stdout.flush()
    except KeyboardInterrupt:
        answer.close()  # what was said so far is remembered
    except CapacityError as error:
        begun = any(message["role"] != "system" for message in conversation.messages)
        remedy = "/reset forgets the conversation" if begun else "shorten the message or lower --max-tokens"
        raise CapacityError(f"{error}; {remedy}") from error
    typer.echo()


def _command(conversation: "Conversation", text: str) -> None:
    name, _, rest = text.partition(" ")
    match name, rest.strip():
        case "/reset", "":
            system = conversation.messages[:1]
            kept = system[0]["content"] if system and system[0]["role"] == "system" else None
            conversation.reset(kept)
        case "/system", message if message:
            conversation.reset(message)
        case "/save", file if file:
            content = json.dumps(conversation.messages, indent=2, ensure_ascii=False) + "\n"
            try:
                Path(file).expanduser().write_text(content, encoding="utf-8")
            except OSError as error:
                raise RequestError(f"{file} cannot be written: {error}") from error
        case "/help", "":
            typer.echo(HELP, err=True)
        case _:
            raise RequestError(f"{text} is no command; /help tells them")
