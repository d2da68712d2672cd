"""``fuel run --input``: a file of prompts in, a file of answers out, going on where a run stopped."""

import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, BinaryIO

import typer

from fuel_core.cli.answers_file import Head, answer_heads, answer_line, appended, held_answers
from fuel_core.cli.loading_options import LoadingOptions
from fuel_core.cli.progress import counting_bar
from fuel_core.cli.prompts_file import read_prompts
from fuel_core.cli.sampling_options import SamplingOptions
from fuel_core.errors import RequestError
from fuel_core.generate.run import GenerationRun
from fuel_core.generate.settings import GenerationSettings


def answer_file(
    prompts_path: Path,
    answers_path: Path,
    loading: LoadingOptions,
    sampling: SamplingOptions,
    settings: GenerationSettings,
    *,
    batch: int,
    backend: str | None,
    strict: bool,
) -> None:
    """Append the answer of each prompt that has none yet, in the order of the prompts.

    Raises:
        RequestError: a line that is no prompt or cannot be continued, a file of answers that are not of these
            prompts, this model and these settings, or one file for both. No file was changed.
    """
    _refuse_one_file(prompts_path, answers_path)
    prompts = read_prompts(prompts_path)
    heads = answer_heads(prompts, _statement(loading, sampling, settings))
    held = held_answers(answers_path, heads)
    rest = prompts[held.count :]
    if rest:
        model = loading.load(backend=backend)
        settings = replace(settings, sampling=sampling.of(model))
        tokens = [prompt.token_ids(model, settings) for prompt in rest]
        run = model.run(tokens, settings, batch=batch, backend=backend, strict=strict)
        with appended(answers_path, held) as answers:
            _write(run, heads[held.count :], answers, logprobs=settings.logprobs is not None)
    typer.echo(f"[{len(rest)} prompts answered now, {held.count} were there]", err=True)


def _refuse_one_file(prompts: Path, answers: Path) -> None:
    """A stream, such as a terminal, may be both."""
    if answers.is_file() and prompts.is_file() and os.path.samefile(prompts, answers):
        raise RequestError(f"--input {prompts} and --output {answers} are one file; name another --output")


def _statement(
    loading: LoadingOptions, sampling: SamplingOptions, settings: GenerationSettings
) -> dict[str, Any]:
    """What decides an answer, as it was asked for: what is left to its default is absent.

    Device, backend and batch are not in it, since an answer is theirs up to rounding.
    """
    default = asdict(GenerationSettings())
    asked = {name: value for name, value in asdict(settings).items() if value != default[name]}
    return {**loading.stated, **sampling.given, **asked}


def _write(run: GenerationRun, heads: Sequence[Head], answers: BinaryIO, *, logprobs: bool) -> None:
    written = 0
    with counting_bar("answering", len(heads)) as one_done:
        for _ in run:
            while written in run.completions:  # a later prompt may be done before an earlier one
                answers.write(answer_line(heads[written], run.completions[written], logprobs=logprobs))
                answers.flush()
                written += 1
                one_done()
