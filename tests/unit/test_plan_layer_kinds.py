"""Layers folded by kind."""

from dataclasses import replace

import pytest

from fuel_core.inspection.layer_kinds import grouped, layer_kinds, span_text, spread_text
from fuel_core.plans import (
    AttentionPlan,
    CacheSpec,
    GatedMLPPlan,
    KVSlots,
    LayerPlan,
    MaskPlan,
    ModelPlan,
    NormPlan,
    RopePlan,
    RopeVariant,
)

ATTENTION = AttentionPlan(query_heads=4, kv_heads=2, head_dim=8, scale=1.0, qkv_bias=False, out_bias=False)
LAYER = LayerPlan(ATTENTION, GatedMLPPlan(width=16, activation="silu"))
ROPE = RopeVariant(base=1e4, width=8)
PLAN = ModelPlan(
    family="toy",
    vocab_size=10,
    hidden_size=32,
    max_positions=64,
    norm=NormPlan("rms", 1e-6),
    tied=False,
    embed_scale=None,
    head_bias=False,
    layers=(LAYER,) * 6,
    mask=MaskPlan.dense(6),
    rope=RopePlan.single(ROPE, 6),
    cache=CacheSpec.uniform(KVSlots(2, 8), 6),
)


def spans(plan: ModelPlan) -> list[str]:
    return [span_text(layers) for _, layers in layer_kinds(plan)]


@pytest.mark.parametrize(
    ("layers", "text"),
    [([], ""), ([3], "3"), ([0, 1], "0-1"), ([0, 1, 2, 5, 7, 8], "0-2, 5, 7-8"), ([9, 10, 11], "9-11")],
)
def test_spans(layers: list[int], text: str) -> None:
    assert span_text(layers) == text


def test_equal_layers_are_one_kind() -> None:
    assert spans(PLAN) == ["0-5"]


@pytest.mark.parametrize(
    "changed",
    [
        {"mask": MaskPlan((7, None), (0, 1, 1, 0, 1, 1))},
        {"rope": RopePlan((ROPE, RopeVariant(base=1e6, width=8)), (0, 1, 1, 0, 1, 1))},
        {"rope": RopePlan((ROPE,), (0, None, None, 0, None, None))},
        {"cache": CacheSpec(tuple(KVSlots(2 if i % 3 else 1, 8) for i in range(6)))},
        {"layers": tuple(LAYER if i % 3 else replace(LAYER, feed_forward="moe") for i in range(6))},
        {"layers": tuple(LAYER if i % 3 else replace(LAYER, mixer="mla") for i in range(6))},
    ],
    ids=["mask", "rope", "no rope", "slots", "feed-forward", "mixer"],
)
def test_whatever_differs_makes_another_kind(changed: dict[str, object]) -> None:
    assert spans(replace(PLAN, **changed)) == ["0, 3", "1-2, 4-5"]


def test_values_without_a_hash_are_grouped() -> None:
    assert grouped([[1], [2], [1]]) == [([1], [0, 2]), ([2], [1])]


def test_a_value_that_all_share_needs_no_layers() -> None:
    assert spread_text([5, 5]) == "5"
    assert spread_text([5, None, 5], lambda window: "none" if window is None else str(window)) == (
        "5 (0, 2); none (1)"
    )
