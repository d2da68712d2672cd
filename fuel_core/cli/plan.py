"""``fuel plan``: what a model is, before any of its weights is read."""

import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fuel_core.cli.byte_count import byte_count
from fuel_core.cli.model_options import AllowUnknownKeys, Dtype, FamilyOptions, Revision, option_choices
from fuel_core.cli.terminal import print_json, print_notice, print_table
from fuel_core.registry import Registry

if TYPE_CHECKING:
    from fuel_core.inspection.plan_report import PlanReport


def plan(
    ref: Annotated[
        str,
        typer.Argument(help="A family, family:tag, ./folder, org/name on the hub, or a config.json file."),
    ],
    context: Annotated[
        int | None,
        typer.Option(min=1, help="Size the cache for this many tokens. [default: all positions]"),
    ] = None,
    rows: Annotated[int, typer.Option(min=1, help="Size the cache for this many sequences.")] = 1,
    revision: Revision = None,
    dtype: Dtype = None,
    option: FamilyOptions = None,
    allow_unknown_keys: AllowUnknownKeys = False,
    image: Annotated[
        Path | None,
        typer.Option(help="Draw the layers into this file (PNG, PDF or SVG); needs matplotlib."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what a model is, before any weight is read.

    Family, dtypes, masks and RoPE by layer, cache and weights in bytes, and what became of each key of
    config.json. No weight file is opened; of a hub repository config.json alone is fetched.
    """
    choices = option_choices(option)
    with contextlib.redirect_stdout(sys.stderr):  # what a plugin prints is not part of the plan
        from fuel_core.inspection.plan_report import read_report

        report = read_report(
            Registry.discover(),
            ref,
            dtype=dtype,
            options=choices,
            allow_unknown_keys=allow_unknown_keys,
            revision=revision,
            context=context,
            rows=rows,
        )
    if image is not None:
        from fuel_core.cli.plan_image import save_image

        save_image(report, image)
        print_notice("note", f"drawn into {image}", "cyan")
    if as_json:
        print_json(report.as_dict())
    else:
        _print(report)


def _print(report: "PlanReport") -> None:
    plan, numerics, cache = report.plan, report.plan.numerics, report.cache
    typer.echo(f"{report.reading.family.name} ({report.plugin}): {report.reading.path}\n")
    head = "its embeddings" if plan.tied else "of its own"
    facts = {
        "model": f"{len(plan.layers)} layers of width {plan.hidden_size:,}, {plan.vocab_size:,} tokens, "
        f"head {head}",
        "positions": f"{plan.position_limit:,}",
        "numerics": ", ".join(
            f"{use} {_name(dtype)}"
            for use, dtype in (
                ("weights", numerics.weights),
                ("activations", numerics.activations),
                ("cache", numerics.cache),
            )
        ),
        "parameters": f"{report.parameters.count:,}",
        "weights": "; ".join(
            f"{dtype} {byte_count(count)}" for dtype, count in report.parameters.bytes.items()
        ),
        "cache": f"{byte_count(cache['bytes_per_token'])} a token{_against_expanded(cache)}; "
        f"{cache['rows']} x {cache['context']:,} tokens: {byte_count(cache['bytes'])}",
    }
    for name, text in facts.items():
        typer.echo(f"{name:<12}{text}")
    _print_layers(report)
    _print_recipes(report)
    _print_ledger(report)
    for note in report.notes:
        typer.echo(f"\nnote: {note}")


def _against_expanded(cache: dict[str, int]) -> str:
    """What latents save, where a model caches them."""
    expanded = cache["expanded_bytes_per_token"]
    return "" if expanded == cache["bytes_per_token"] else f" ({expanded:,} as keys and values)"


def _print_layers(report: "PlanReport") -> None:
    from fuel_core.inspection.layer_kinds import layer_kinds, span_text

    typer.echo()
    print_table(
        ("LAYERS", "MASK", "ROPE", "CACHE A TOKEN", "MIXER", "FEED-FORWARD"),
        [
            (
                span_text(layers),
                "causal" if kind.window is None else f"window {kind.window:,}",
                "none" if kind.rope is None else f"#{kind.rope}",
                str(kind.slots),
                str(kind.parts.mixer),
                f"{kind.parts.feed_forward}{', parallel' if kind.parts.parallel else ''}",
            )
            for kind, layers in layer_kinds(report.plan)
        ],
    )


def _print_recipes(report: "PlanReport") -> None:
    from fuel_core.inspection.plan_report import SWITCH_POLICY, recipe

    rows = []
    for number, variant in enumerate(report.plan.rope.variants):
        scaling = recipe(variant)["scaling"]
        kind = scaling.pop("kind")
        numbers = ", ".join(f"{name} {_number(value)}" for name, value in scaling.items())
        rows.append(
            (
                f"#{number}",
                _number(variant.base),
                str(variant.width),
                variant.layout,
                f"{kind}: {numbers}" if numbers else kind,
                ", ".join(_number(magnitude) for magnitude in variant.scaling.magnitudes),
            )
        )
    if rows:
        typer.echo()
        print_table(("ROPE", "BASE", "WIDTH", "LAYOUT", "SCALING", "MAGNITUDE"), rows)
    length = report.plan.switch_length
    if length is not None:
        typer.echo(f"\nthe first table serves up to {length:,} tokens; {SWITCH_POLICY}")


def _print_ledger(report: "PlanReport") -> None:
    typer.echo()
    print_table(
        ("KEY", "VALUE", "FATE", "REASON"),
        [
            (entry.key, short_value(entry.value), entry.fate.value, entry.reason)
            for entry in report.reading.ledger
        ],
    )


def short_value(value: object, longest: int = 40) -> str:
    """A value of config.json on one line, cut where it is long."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def _number(value: Any) -> str:
    """A number of a recipe; a table of them by its length and range."""
    match value:
        case list():
            return f"{len(value)} from {_number(min(value))} to {_number(max(value))}"
        case bool() | None:
            return short_value(value)
        case int() | float():
            return f"{value:,.10g}"
    return str(value)


def _name(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")
