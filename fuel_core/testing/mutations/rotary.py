"""Faults of RoPE."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from fuel_core.cache import Cache
from fuel_core.plans.model_plan import ModelPlan
from fuel_core.plans.rope import Layout, RopeVariant
from fuel_core.plans.scaling import LongRopeScaling, YarnScaling
from fuel_core.rotary import RopeRows, RopeTable
from fuel_core.testing.mutations.mutation import CoreMutation


def _has_rope(plan: ModelPlan) -> bool:
    return bool(plan.rope.variants)


def _has_yarn(plan: ModelPlan) -> bool:
    return any(isinstance(variant.scaling, YarnScaling) for variant in plan.rope.variants)


def _swap_cos_and_sin(patch: pytest.MonkeyPatch) -> None:
    rows = RopeTable.rows

    def swapped(self: RopeTable, positions: Tensor, regime: Tensor) -> RopeRows:
        right = rows(self, positions, regime)
        return replace(right, cos=right.sin, sin=right.cos)

    patch.setattr(RopeTable, "rows", swapped)


def _double_the_base(patch: pytest.MonkeyPatch) -> None:
    frequencies = RopeVariant.inverse_frequencies
    patch.setattr(
        RopeVariant, "inverse_frequencies", lambda self: frequencies(replace(self, base=2 * self.base))
    )


def _pair_neighbours(patch: pytest.MonkeyPatch) -> None:
    rows = RopeTable.rows
    layouts: dict[Layout, Layout] = {"half": "interleaved", "interleaved": "half"}

    def paired_otherwise(self: RopeTable, positions: Tensor, regime: Tensor) -> RopeRows:
        right = rows(self, positions, regime)
        return replace(right, layout=layouts[right.layout])

    patch.setattr(RopeTable, "rows", paired_otherwise)


def _longropes(plan: ModelPlan) -> list[LongRopeScaling]:
    scalings = [variant.scaling for variant in plan.rope.variants]
    return [scaling for scaling in scalings if isinstance(scaling, LongRopeScaling)]


def _has_two_tables(plan: ModelPlan) -> bool:
    return any(scaling.short_factor != scaling.long_factor for scaling in _longropes(plan))


def _keep_the_first_table(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LongRopeScaling, "regime", lambda self, length: 0)


def _keep_keys_of_the_first_table(patch: pytest.MonkeyPatch) -> None:
    def enter(self: Any, token_ids: Sequence[Sequence[int]], caches: Sequence[Cache | None]) -> None:
        for cache, ids in zip(caches, token_ids, strict=True):
            if cache is not None:
                cache.regime = self.decoder.plan.rope.regime(cache.length + len(ids))

    patch.setattr("fuel_core.decode.session.DecodeSession._enter_regimes", enter)


def _forget_the_magnitude_of_longrope(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LongRopeScaling, "magnitudes", property(lambda self: (1.0, 1.0)))


def _forget_the_magnitude(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(YarnScaling, "magnitudes", property(lambda self: (1.0,)))


ROTARY_MUTATIONS = (
    CoreMutation("cos and sin swapped", _swap_cos_and_sin, _has_rope),
    CoreMutation("rope base doubled", _double_the_base, _has_rope),
    CoreMutation("rope pairs of the other layout", _pair_neighbours, _has_rope),
    CoreMutation("yarn magnitude forgotten", _forget_the_magnitude, _has_yarn),
    CoreMutation(
        "longrope magnitude forgotten",
        _forget_the_magnitude_of_longrope,
        lambda plan: any(scaling.magnitudes != (1.0, 1.0) for scaling in _longropes(plan)),
    ),
    CoreMutation("the first rope table at every length", _keep_the_first_table, _has_two_tables),
    CoreMutation("keys of the first rope table kept", _keep_keys_of_the_first_table, _has_two_tables),
)
