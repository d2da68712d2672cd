"""A plan as a picture: a row a layer, as long as what the layer sees, coloured by its RoPE recipe.

Needs matplotlib, which the extra ``fuel-core[image]`` brings.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from fuel_core.errors import RequestError
from fuel_core.inspection.layer_kinds import LayerKind
from fuel_core.inspection.plan_report import PlanReport
from fuel_core.plans.rope import RopeVariant

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NO_ROPE_COLOUR = "0.85"
_ROW_INCHES = 0.22


def save_image(report: PlanReport, path: Path) -> None:
    """Draw a plan into a file, in the format that its suffix names.

    Raises:
        RequestError: matplotlib is missing, it does not write this format, or the file cannot be written.
    """
    figure = draw(report)
    formats = figure.canvas.get_supported_filetypes()
    wanted = path.suffix.removeprefix(".").lower()
    if wanted not in formats:
        raise RequestError(
            f"the image {path} should end in one of .{', .'.join(sorted(formats))}, which name its format"
        )
    try:
        figure.savefig(path, format=wanted, dpi=150, bbox_inches="tight")
    except OSError as error:
        raise RequestError(f"the image {path} cannot be written: {error}") from error


def draw(report: PlanReport) -> "Figure":
    """The figure: layer 0 on top, the tokens that a query of the last position sees on a log axis.

    Raises:
        RequestError: matplotlib is missing.
    """
    try:
        from matplotlib import colormaps
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
        from matplotlib.ticker import MaxNLocator
    except ModuleNotFoundError as error:
        raise RequestError(
            f"an image needs matplotlib, and {error.name} is not there: pip install 'fuel-core[image]'"
        ) from error

    plan = report.plan
    kinds = [LayerKind.of(plan, layer) for layer in range(len(plan.layers))]
    palette = colormaps["Set2"]  # light enough for black text
    colours = {number: palette(number % palette.N) for number in range(len(plan.rope.variants))}

    figure = Figure(figsize=(8, 1.6 + _ROW_INCHES * len(kinds)))
    axes = figure.subplots()
    axes.barh(
        range(len(kinds)),
        [seen_tokens(kind, plan.position_limit) for kind in kinds],
        color=[_NO_ROPE_COLOUR if kind.rope is None else colours[kind.rope] for kind in kinds],
        height=0.8,
    )
    for layer, kind in enumerate(kinds):
        axes.text(1.15, layer, _row_text(report, kind), va="center", fontsize=7)
    axes.set_xscale("log", base=2)
    axes.set_xlim(1, max(2, plan.position_limit))
    axes.set_ylim(len(kinds) - 0.4, -0.6)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylabel("layer")
    axes.set_xlabel(f"tokens that the last of {plan.position_limit:,} positions sees")
    title = f"{report.reading.family.name}: {report.reading.path}"
    axes.set_title(title, fontsize=9, parse_math=False)  # a path may hold dollar signs
    legend = [
        Patch(color=colours[number], label=_recipe_text(variant))
        for number, variant in enumerate(plan.rope.variants)
    ]
    if any(kind.rope is None for kind in kinds):
        legend.append(Patch(color=_NO_ROPE_COLOUR, label="no RoPE"))
    axes.legend(handles=legend, fontsize=7, loc="upper left", bbox_to_anchor=(1.01, 1))
    return figure


def seen_tokens(kind: LayerKind, position_limit: int) -> int:
    """How many tokens a query at the last position sees in a layer of this kind."""
    return position_limit if kind.window is None else min(kind.window, position_limit)


def _row_text(report: PlanReport, kind: LayerKind) -> str:
    window = "causal" if kind.window is None else f"window {kind.window:,}"
    if kind.rope is None:
        return f"{window}, no RoPE"
    return f"{window}, base {report.plan.rope.variants[kind.rope].base:,.10g}"


def _recipe_text(variant: RopeVariant) -> str:
    return f"RoPE base {variant.base:,.10g}, width {variant.width}, scaling {variant.scaling.kind}"
