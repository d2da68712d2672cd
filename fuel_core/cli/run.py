"""``fuel run``: continue a prompt on the terminal."""

import json
import sys
from typing import Annotated

import typer


def run(
    ref: Annotated[str, typer.Argument(help="A family, family:tag, ./folder or org/name on the hub.")],
    prompt: Annotated[str, typer.Argument(help="The text to continue; - reads standard input.")],
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Generate at most this many tokens. [default: 128]")
    ] = None,
    temperature: Annotated[
        float, typer.Option(help="0 takes the most probable token, 1 samples as the model says.")
    ] = 0.0,
    top_k: Annotated[int, typer.Option(help="Sample from the k most probable tokens; 0 is off.")] = 0,
    top_p: Annotated[float, typer.Option(help="Sample from the smallest set of this mass; 1 is off.")] = 1.0,
    seed: Annotated[int | None, typer.Option(help="Makes sampling repeatable.")] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Dtype of the weights. [default: as the checkpoint says]")
    ] = None,
    backend: Annotated[str, typer.Option(help="How the planned step runs.")] = "eager",
    strict: Annotated[bool, typer.Option("--strict", help="Fail rather than plan a second time.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole result as JSON.")] = False,
    allow_unknown_keys: Annotated[
        bool, typer.Option("--allow-unknown-keys", help="Load a config.json with keys nobody understands.")
    ] = False,
) -> None:
    """Continue a prompt with a model.

    The text streams to standard output; one line of speed ends it on standard error.
    """
    from fuel_core.generate.sampling import Sampling
    from fuel_core.loading import load

    if prompt == "-":
        prompt = sys.stdin.read()
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    model = load(ref, dtype=dtype, allow_unknown_keys=allow_unknown_keys)
    stream = model.stream(prompt, max_tokens=max_tokens, sampling=sampling, backend=backend, strict=strict)
    for piece in stream:
        if not as_json:
            typer.echo(piece, nl=False)
            sys.stdout.flush()
    completion = stream.completion
    assert completion is not None
    if as_json:
        typer.echo(json.dumps(completion.as_dict(), indent=2, ensure_ascii=False))
        return
    typer.echo()
    timings, tokens = completion.timings, len(completion.token_ids)
    speed = "" if timings.tokens_per_s is None else f", {timings.tokens_per_s:.0f} tokens/s"
    typer.echo(
        f"[{tokens} tokens ({completion.finish_reason}){speed}; first after {timings.first_token_ms:.0f} ms; "
        f"loaded in {timings.load_ms:.0f} ms; plans {completion.counters.plans}]",
        err=True,
    )
