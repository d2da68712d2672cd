"""``fuel run``: continue a prompt on the terminal, or a file of prompts."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fuel_core.cli.model_options import (
    RUNNING,
    AllowUnknownKeys,
    BackendName,
    Device,
    Dtype,
    FamilyOptions,
    Ref,
    Revision,
    option_choices,
)

if TYPE_CHECKING:
    from fuel_core.generate.completion import Completion
    from fuel_core.generate.settings import GenerationSettings
    from fuel_core.model import LanguageModel

SAMPLING, STOPPING = "Choosing tokens", "Ending"


def run(
    ref: Ref,
    prompt: Annotated[
        str | None,
        typer.Argument(
            help="The text to continue; - takes all of standard input as one text, less one final newline."
        ),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            help="0 takes the most probable token, 1 samples as the model says. [default: this and the next "
            "four as the checkpoint's generation_config.json says, else 0]",
            rich_help_panel=SAMPLING,
        ),
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(help="Keep the k most probable tokens; 0 is off.", rich_help_panel=SAMPLING)
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(help="Keep the smallest set of this mass; 1 is off.", rich_help_panel=SAMPLING),
    ] = None,
    min_p: Annotated[
        float | None,
        typer.Option(help="Keep tokens of this share of the best one; 0 is off.", rich_help_panel=SAMPLING),
    ] = None,
    repetition_penalty: Annotated[
        float | None,
        typer.Option(help="Above 1 against what prompt and text hold.", rich_help_panel=SAMPLING),
    ] = None,
    presence_penalty: Annotated[
        float | None, typer.Option(help="Taken from tokens of the text so far.", rich_help_panel=SAMPLING)
    ] = None,
    frequency_penalty: Annotated[
        float | None, typer.Option(help="Likewise, times their number.", rich_help_panel=SAMPLING)
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Makes sampling repeatable.", rich_help_panel=SAMPLING)
    ] = None,
    n: Annotated[int, typer.Option(min=1, help="Continuations.", rich_help_panel=SAMPLING)] = 1,
    max_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="At most this many tokens. [default: 128]", rich_help_panel=STOPPING),
    ] = None,
    min_tokens: Annotated[
        int, typer.Option(min=0, help="No end token before this many.", rich_help_panel=STOPPING)
    ] = 0,
    stop: Annotated[
        list[str] | None,
        typer.Option(help="End at this text; may be repeated.", rich_help_panel=STOPPING),
    ] = None,
    ignore_eos: Annotated[
        bool,
        typer.Option("--ignore-eos", help="Go on at the model's end tokens.", rich_help_panel=STOPPING),
    ] = False,
    revision: Revision = None,
    dtype: Dtype = None,
    device: Device = None,
    option: FamilyOptions = None,
    allow_unknown_keys: AllowUnknownKeys = False,
    backend: BackendName = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail rather than plan twice.", rich_help_panel=RUNNING)
    ] = False,
    batch: Annotated[
        int, typer.Option(min=1, help="Sequences that run at a time.", rich_help_panel=RUNNING)
    ] = 8,
    logprobs: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="With --json or --input: log-probabilities, with this many alternatives.",
            rich_help_panel=RUNNING,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the whole result as JSON.", rich_help_panel=RUNNING)
    ] = False,
    input_file: Annotated[
        Path | None,
        typer.Option(
            "--input",
            help='Continue a file of lines {"prompt": "..."}; their other keys are carried into the answers.',
            rich_help_panel=RUNNING,
        ),
    ] = None,
    output_file: Annotated[
        Path | None,
        typer.Option(
            "--output",
            help="Where its answers go, as JSON lines; goes on where it stopped.",
            rich_help_panel=RUNNING,
        ),
    ] = None,
) -> None:
    """Continue a prompt with a model.

    The text streams to standard output; one line of speed ends it on standard error.
    """
    _check_usage(prompt, input_file, output_file, as_json=as_json, logprobs=logprobs)
    choices = option_choices(option)
    from fuel_core.cli.loading_options import LoadingOptions
    from fuel_core.cli.prompt_text import prompt_text
    from fuel_core.cli.sampling_options import SamplingOptions
    from fuel_core.generate.settings import GenerationSettings

    loading = LoadingOptions(
        ref=ref,
        revision=revision,
        dtype=dtype,
        device=device,
        options=choices,
        allow_unknown_keys=allow_unknown_keys,
    )
    sampling = SamplingOptions(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        seed=seed,
    )
    settings = GenerationSettings(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        stop=stop or (),
        ignore_eos=ignore_eos,
        n=n,
        logprobs=logprobs,
    )
    if input_file is not None and output_file is not None:
        from fuel_core.cli.file_run import answer_file

        answer_file(
            input_file, output_file, loading, sampling, settings, batch=batch, backend=backend, strict=strict
        )
        return
    assert prompt is not None
    text = prompt_text(prompt)
    model = loading.load(backend=backend)
    settings = replace(settings, sampling=sampling.of(model))
    if as_json or n > 1:
        completion = model.generate([text], settings, batch=batch, backend=backend, strict=strict)[0]
        _print_result(completion, as_json)
    else:
        _stream(model, text, settings, backend, strict)


def _check_usage(
    prompt: str | None,
    input_file: Path | None,
    output_file: Path | None,
    *,
    as_json: bool,
    logprobs: int | None,
) -> None:
    if (prompt is None) == (input_file is None):
        raise typer.BadParameter("give either a prompt or --input FILE", param_hint="PROMPT")
    if (input_file is None) != (output_file is None):
        raise typer.BadParameter("--input and --output go together", param_hint="--output")
    if logprobs is not None and not as_json and input_file is None:
        raise typer.BadParameter(
            "log-probabilities are shown with --json or in answers to --input", param_hint="--logprobs"
        )
    if as_json and input_file is not None:
        raise typer.BadParameter("answers to a file are JSON lines already", param_hint="--json")


def _stream(
    model: "LanguageModel", text: str, settings: "GenerationSettings", backend: str | None, strict: bool
) -> None:
    stream = model.stream(text, settings, backend=backend, strict=strict)
    for piece in stream:
        typer.echo(piece, nl=False)
        sys.stdout.flush()
    assert stream.completion is not None
    typer.echo()
    _print_speed(stream.completion)


def _print_result(completion: "Completion", as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(completion.as_dict(), indent=2, ensure_ascii=False))
        return
    for number, choice in enumerate(completion.choices, start=1):
        typer.echo(f"[{number}] {choice.text}")
    _print_speed(completion)


def _print_speed(completion: "Completion") -> None:
    timings, tokens = completion.timings, sum(len(choice.token_ids) for choice in completion.choices)
    speed = "" if timings.tokens_per_s is None else f", {timings.tokens_per_s:.0f} tokens/s"
    typer.echo(
        f"[{tokens} tokens ({completion.finish_reason}){speed}; first after {timings.first_token_ms:.0f} ms; "
        f"loaded in {timings.load_ms:.0f} ms; plans {completion.counters.plans}]",
        err=True,
    )
