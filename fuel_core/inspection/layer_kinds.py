"""The layers of a plan by kind, so that a deep model takes a few lines."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from fuel_core.plans.cache_spec import Slots
from fuel_core.plans.model_plan import LayerPlan, ModelPlan

Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True)
class LayerKind:
    """All that a plan says of one layer.

    Attributes:
        window: the width of its mask in tokens; None for plain causal attention.
        rope: the number of its RoPE recipe; None for a layer without.
        slots: what it caches per token.
        parts: its mixer and its feed-forward.
    """

    window: int | None
    rope: int | None
    slots: Slots
    parts: LayerPlan

    @classmethod
    def of(cls, plan: ModelPlan, layer: int) -> "LayerKind":
        return cls(
            window=plan.mask.window(layer),
            rope=plan.rope.per_layer[layer],
            slots=plan.cache.layers[layer],
            parts=plan.layers[layer],
        )


def layer_kinds(plan: ModelPlan) -> list[tuple[LayerKind, list[int]]]:
    """Each kind of layer with the layers that are of it, by their first layer."""
    return grouped(LayerKind.of(plan, layer) for layer in range(len(plan.layers)))


def grouped(values: Iterable[Value]) -> list[tuple[Value, list[int]]]:
    """Each distinct value with its places; a family's own values need an ``==``, not a hash."""
    groups: list[tuple[Value, list[int]]] = []
    for place, value in enumerate(values):
        places = next((places for known, places in groups if known == value), None)
        if places is None:
            groups.append((value, [place]))
        else:
            places.append(place)
    return groups


def span_text(layers: Sequence[int]) -> str:
    """Ascending layers as ``0-3, 7, 9-10``."""
    spans: list[list[int]] = []
    for layer in layers:
        if spans and layer == spans[-1][1] + 1:
            spans[-1][1] = layer
        else:
            spans.append([layer, layer])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def spread_text(values: Sequence[Any], text: Callable[[Any], str] = str) -> str:
    """What each layer has, in one line: ``5 (0, 3); none (1-2)``, or the value that all of them share."""
    groups = grouped(values)
    if len(groups) == 1:
        return text(values[0])
    return "; ".join(f"{text(value)} ({span_text(layers)})" for value, layers in groups)
