"""Which layers of a Qwen attend through a window: what the file says, what transformers makes of it.

Source: the documentation of ``max_window_layers`` in Qwen2's published configs: the layers below it slide.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from fuel_core.config import NULL_IS_ABSENT, FamilyConfig
from fuel_core.errors import ConfigError
from fuel_core.plans import MaskPlan

WindowLayers = Literal["first", "last"]
"""The first ``max_window_layers`` slide (Qwen's documentation), or all after them."""

_ABSENT_SPLIT = 28
"""transformers' ``max_window_layers`` when the file states none."""


class WindowKeys(FamilyConfig):
    """The keys of windows.

    Absent: ``sliding_window`` is the whole context, ``max_window_layers`` every layer; null means
    absent, but a null ``sliding_window`` is no window. ``layer_types`` beats the rule of the others.
    """

    use_sliding_window: bool = False
    sliding_window: Annotated[int, Field(ge=0)] | None = Field(
        default_factory=lambda known: known["max_position_embeddings"]
    )
    max_window_layers: Annotated[Annotated[int, Field(ge=0)], NULL_IS_ABSENT] = Field(
        default_factory=lambda known: known["num_hidden_layers"]
    )
    layer_types: Annotated[tuple[str, ...] | None, NULL_IS_ABSENT, Field(strict=False)] = None


@dataclass(frozen=True, kw_only=True)
class TransformersRule:
    """How transformers reads a family's windows, so that a load can say where it differs.

    Attributes:
        slides: (layer, max_window_layers) -> whether the layer slides once windows are on.
        reads_layer_types: it lets ``layer_types`` win, as fuel does.
    """

    slides: Callable[[int, int], bool]
    reads_layer_types: bool = True

    def layers(self, config: WindowKeys) -> list[int]:
        """The sliding layers of a file whose ``layer_types`` it does not read."""
        if not (config.use_sliding_window and config.sliding_window):
            return []
        split = config.max_window_layers if "max_window_layers" in config.model_fields_set else _ABSENT_SPLIT
        return [layer for layer in range(config.num_hidden_layers) if self.slides(layer, split)]


FROM_THE_SPLIT = TransformersRule(slides=lambda layer, split: layer >= split)
"""Qwen2 and Qwen3, dense."""

EVEN_BELOW_THE_SPLIT = TransformersRule(slides=lambda layer, split: layer < split and layer % 2 == 0)
"""Qwen2-MoE."""

EVERY_LAYER = TransformersRule(slides=lambda layer, split: True, reads_layer_types=False)
"""Qwen3-MoE."""


def window_plan(
    config: WindowKeys, chosen: WindowLayers, transformers: TransformersRule
) -> tuple[MaskPlan, list[str]]:
    """The mask of every layer, and what a user should know about how it was read.

    Raises:
        ConfigError: ``layer_types`` has another number of layers, an unknown type, or slides without a
            width.
    """
    layers, split, window = config.num_hidden_layers, config.max_window_layers, config.sliding_window
    if config.layer_types is not None:
        if len(config.layer_types) != layers:
            raise ConfigError(
                f"layer_types names {len(config.layer_types)} layers, num_hidden_layers is {layers}"
            )
        mask = MaskPlan.from_layer_types(config.layer_types, window)
    elif not config.use_sliding_window:
        mask = MaskPlan.dense(layers)
    else:
        ours = range(split) if chosen == "first" else range(split, layers)
        mask = MaskPlan.per_layer_window(layers, window, lambda layer: layer in ours)
    sliding = [layer for layer in range(layers) if mask.window(layer) is not None]
    if config.layer_types is not None:
        return mask, _notes_on_layer_types(config, sliding, transformers)
    return mask, _notes_on_the_rule(config, sliding, transformers)


def _notes_on_layer_types(
    config: WindowKeys, sliding: Sequence[int], transformers: TransformersRule
) -> list[str]:
    if not transformers.reads_layer_types and sliding != transformers.layers(config):
        theirs = _span(transformers.layers(config))
        return [
            f"layer_types lets the layers {_span(sliding)} slide and is followed; transformers does not read "
            f"it in this family and would let {theirs} slide"
        ]
    if sliding and "use_sliding_window" in config.model_fields_set and not config.use_sliding_window:
        return ["layer_types lets layers slide although use_sliding_window is false; it is followed"]
    return []


def _notes_on_the_rule(
    config: WindowKeys, sliding: Sequence[int], transformers: TransformersRule
) -> list[str]:
    stated, window = config.model_fields_set, config.sliding_window
    if not window:
        return []
    if not config.use_sliding_window:
        if "sliding_window" not in stated or "use_sliding_window" in stated:
            return []
        return [
            f"sliding_window is {window}, but use_sliding_window is absent: no layer slides (transformers "
            "reads it so too)"
        ]
    notes = []
    if "sliding_window" not in stated:
        notes.append(
            f"sliding_window is absent: the whole context, {window} tokens, is used "
            "(transformers would take 4096)"
        )
    theirs = transformers.layers(config)
    if sliding != theirs:
        notes.append(
            f"the layers {_span(sliding)} slide; transformers would let {_span(theirs)} slide; choose "
            "with the option window_layers, or state layer_types in config.json"
        )
    return notes


def _span(layers: Sequence[int]) -> str:
    """Layers in words: ``0-27``, ``0, 2, 4`` or ``none``."""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][-1] + 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs) or "none"
