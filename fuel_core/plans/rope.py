"""Rotary position embeddings, per layer: distinct recipes and the one that each layer uses.

R is the rotary width: the number of leading dimensions of a head that are rotated, in R/2 pairs.
A *regime* is one of the frequency tables of a recipe; only LongRoPE has two (0 short, 1 long).

Source: RoFormer (arXiv:2104.09864) for the rotation; see ``scaling`` for the scaled recipes.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch

from fuel_core.errors import PlanError
from fuel_core.plans.scaling import UNSCALED, Scaling, pair_exponents
from fuel_core.plans.variants import check_assignment

Layout = Literal["half", "interleaved"]

LARGEST_BASE = 1e30
"""Far beyond any published base (1e10 or so), far within float32."""


@dataclass(frozen=True, kw_only=True)
class RopeVariant:
    """One rotary recipe.

    Attributes:
        base: the base of the geometric series of wavelengths (``rope_theta``).
        width: R, the rotated leading dimensions of a head; even.
        scaling: how a longer context is reached.
        layout: which dimensions form pair i: ``half`` takes i and i + R/2 (Llama, Qwen),
            ``interleaved`` takes 2i and 2i + 1 (DeepSeek).

    Raises:
        PlanError: an odd or empty width, a base or magnitude that makes no table, a scaling that
            contradicts itself or the width.
    """

    base: float
    width: int
    scaling: Scaling = UNSCALED
    layout: Layout = "half"

    def __post_init__(self) -> None:
        if self.width < 2 or self.width % 2:
            raise PlanError(f"a rotary width is an even number of dimensions, got {self.width}")
        if not 1 < self.base <= LARGEST_BASE:
            raise PlanError(
                f"a rotary base (rope_theta) lies between 1 and {LARGEST_BASE:g}, got {self.base}: the "
                "wavelengths grow with it, and float32 must hold them"
            )
        self.scaling.check(self.width)
        for magnitude in self.scaling.magnitudes:
            if not 0 < magnitude < math.inf:
                raise PlanError(f"{self.scaling.kind} RoPE scaling multiplies cos and sin by {magnitude}")

    def inverse_frequencies(self) -> torch.Tensor:
        """Return the angle per token of each pair, float32 ``[regimes, R/2]`` on the CPU.

        Computed in float32 throughout, as the published models were: at position 131,071 a
        float64 table differs from it by more than a unit of bfloat16.
        """
        plain = 1.0 / self.base ** pair_exponents(self.width)
        return self.scaling.scale(self.base, self.width, plain)

    @property
    def structure(self) -> tuple[object, ...]:
        """What of this recipe shapes a held step; base and table contents are data."""
        return (self.width, self.layout, self.scaling.regimes, self.scaling.magnitudes != (1.0,))


@dataclass(frozen=True)
class RopePlan:
    """The rotary recipes of a model and the one that each layer uses.

    Attributes:
        variants: the distinct recipes.
        per_layer: the variant of each layer; None for a layer without RoPE.

    Raises:
        PlanError: a layer names a recipe that is not defined, no layer uses a defined one, or two
            recipes change regime at different lengths (a sequence is in one regime).
    """

    variants: tuple[RopeVariant, ...]
    per_layer: tuple[int | None, ...]

    def __post_init__(self) -> None:
        check_assignment("RoPE", len(self.variants), self.per_layer)
        switches = {variant.scaling.switch_length for variant in self.variants} - {None}
        if len(switches) > 1:
            raise PlanError(
                f"the RoPE plan changes tables at different lengths: {sorted(filter(None, switches))} tokens"
            )

    @classmethod
    def single(cls, variant: RopeVariant, layers: int) -> "RopePlan":
        """One recipe for every layer."""
        return cls((variant,), (0,) * layers)

    @classmethod
    def per_layer_base(
        cls, layers: int, first: RopeVariant, second: RopeVariant, uses_first: Callable[[int], bool]
    ) -> "RopePlan":
        """``first`` in the layers that ``uses_first(layer)`` chooses, ``second`` in the others.

        Collapses to one recipe when both are equal or the choice is constant.
        """
        chosen = [first == second or uses_first(layer) for layer in range(layers)]
        if all(chosen):
            return cls.single(first, layers)
        if not any(chosen):
            return cls.single(second, layers)
        return cls((first, second), tuple(0 if use else 1 for use in chosen))

    @property
    def layers(self) -> int:
        return len(self.per_layer)

    @cached_property
    def regimes(self) -> int:
        """The largest number of frequency tables that one recipe has (1, or 2 with LongRoPE)."""
        return max((variant.scaling.regimes for variant in self.variants), default=1)

    @property
    def position_limit(self) -> int | None:
        """The number of positions beyond which a recipe is not defined, None for no limit."""
        limits = [v.scaling.position_limit for v in self.variants if v.scaling.position_limit is not None]
        return min(limits, default=None)

    @property
    def reach(self) -> int | None:
        """The number of positions that a recipe was stretched to, None where no recipe says so."""
        reaches = [v.scaling.reach for v in self.variants if v.scaling.reach is not None]
        return max(reaches, default=None)

    def regime(self, length: int) -> int:
        """The regime of a sequence that holds ``length`` tokens."""
        if self.regimes == 1:
            return 0
        return max(variant.scaling.regime(length) for variant in self.variants)

    def variant(self, layer: int) -> RopeVariant | None:
        chosen = self.per_layer[layer]
        return None if chosen is None else self.variants[chosen]

    @property
    def structure(self) -> tuple[object, ...]:
        """What of this plan shapes a held step. Bases and table contents are data."""
        return (tuple(variant.structure for variant in self.variants), self.per_layer)
