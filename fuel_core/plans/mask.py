"""Which keys a query may see, per layer: the mask plan and the one predicate behind it.

A window of ``w`` tokens counts the query itself: the query at position ``i`` sees the keys
``max(0, i - w + 1) .. i``. No window means every key up to ``i``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from fuel_core.errors import ConfigError, PlanError
from fuel_core.plans.variants import check_assignment

UNBOUNDED = 2**62
"""The width that stands for "no window" where a width must be a number, as in a tensor."""

Position = TypeVar("Position", int, Tensor)


def first_visible(query: Position, window: Position | int) -> Position:
    """Return the lowest position that ``query`` sees; below zero means from the start.

    ``window`` is a width in tokens, or ``UNBOUNDED``. This is the only place that knows what a
    window means: masks, live ranges and kernels are derived from it or tested against it.
    """
    return query - window + 1


def visible(query: Position, key: Position, window: Position | int) -> Position:
    """Return whether ``query`` sees ``key`` (a bool, or a bool tensor by broadcasting)."""
    return (key <= query) & (key >= first_visible(query, window))


@dataclass(frozen=True)
class MaskPlan:
    """The attention windows of a model: distinct ``windows`` and the one that each layer uses.

    Attributes:
        windows: one width in tokens a variant; None is plain causal attention.
        per_layer: the variant that each layer uses.

    Raises:
        PlanError: there is no variant, a width is not positive, a layer names an unknown variant, or
            no layer uses a known one.
    """

    windows: tuple[int | None, ...]
    per_layer: tuple[int, ...]

    def __post_init__(self) -> None:
        check_assignment("mask", len(self.windows), self.per_layer)
        for variant, window in enumerate(self.windows):
            if window is not None and not 1 <= window < UNBOUNDED:
                raise PlanError(
                    f"mask variant {variant} has a window of {window} tokens; a window counts the query "
                    f"itself, so it is at least 1, and below {UNBOUNDED} (use None for no window)"
                )

    @classmethod
    def dense(cls, layers: int) -> "MaskPlan":
        """Plain causal attention in every layer."""
        return cls((None,), (0,) * layers)

    @classmethod
    def per_layer_window(cls, layers: int, window: int | None, slides: Callable[[int], bool]) -> "MaskPlan":
        """Window the layers that ``slides(layer)`` chooses; one variant when the choice is constant.

        A ``window`` of None or 0 is no window at all.
        """
        sliding = [bool(window) and slides(layer) for layer in range(layers)]
        if not any(sliding):
            return cls.dense(layers)
        if all(sliding):
            return cls((window,), (0,) * layers)
        return cls((window, None), tuple(0 if slide else 1 for slide in sliding))

    @classmethod
    def split_window(cls, layers: int, split: int, window: int | None) -> "MaskPlan":
        """Window the first ``split`` layers; ``split`` may lie outside ``0..layers``."""
        return cls.per_layer_window(layers, window, lambda layer: layer < split)

    @classmethod
    def from_layer_types(cls, layer_types: Sequence[str], window: int | None) -> "MaskPlan":
        """Follow a config's ``layer_types``: ``sliding_attention`` or ``full_attention``.

        Raises:
            ConfigError: another type, or a sliding layer without a window.
        """
        for layer, kind in enumerate(layer_types):
            if kind not in ("sliding_attention", "full_attention"):
                raise ConfigError(
                    f"layer_types[{layer}] is {kind!r}; known are 'sliding_attention' and 'full_attention'"
                )
            if kind == "sliding_attention" and not window:
                raise ConfigError(f"layer_types[{layer}] slides, but sliding_window is {window}")
        return cls.per_layer_window(
            len(layer_types), window, lambda layer: layer_types[layer] == "sliding_attention"
        )

    @property
    def layers(self) -> int:
        return len(self.per_layer)

    def window(self, layer: int) -> int | None:
        """The width of this layer's window in tokens, None for plain causal attention."""
        return self.windows[self.per_layer[layer]]

    @property
    def structure(self) -> tuple[object, ...]:
        """What of this plan shapes a held step. Widths are data: they cost no new plan."""
        return (len(self.windows), self.per_layer)
