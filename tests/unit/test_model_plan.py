"""The one value that describes a model: it covers its layers, limits its positions, keys held steps."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from fuel_core.errors import PlanError
from fuel_core.plans import (
    AttentionPlan,
    CacheSpec,
    DynamicScaling,
    GatedMLPPlan,
    KVSlots,
    LatentSlots,
    LayerPlan,
    LinearScaling,
    LongRopeScaling,
    MaskPlan,
    ModelPlan,
    NormPlan,
    Numerics,
    RopePlan,
    RopeVariant,
    Scaling,
    YarnScaling,
)

ATTENTION = AttentionPlan(query_heads=4, kv_heads=2, head_dim=8, scale=0.35, qkv_bias=True, out_bias=False)
MLP = GatedMLPPlan(width=64, activation="silu")
LAYERS = 3


def plan(**changes: Any) -> ModelPlan:
    stated: dict[str, Any] = {
        "family": "toy",
        "vocab_size": 32,
        "hidden_size": 32,
        "max_positions": 128,
        "norm": NormPlan("rms", 1e-6),
        "tied": False,
        "embed_scale": None,
        "head_bias": False,
        "layers": (LayerPlan(ATTENTION, MLP),) * LAYERS,
        "mask": MaskPlan((16, None), (0, 1, 0)),
        "rope": RopePlan.single(RopeVariant(base=1e4, width=8), LAYERS),
        "cache": CacheSpec.uniform(KVSlots(2, 8), LAYERS),
    }
    return ModelPlan(**{**stated, **changes})


def rope(scaling: Scaling) -> RopePlan:
    return RopePlan.single(RopeVariant(base=1e4, width=8, scaling=scaling), LAYERS)


@pytest.mark.parametrize(
    ("part", "value", "named"),
    [
        ("mask", MaskPlan.dense(2), "mask plan covers 2"),
        ("rope", RopePlan.single(RopeVariant(base=1e4, width=8), 4), "RoPE plan covers 4"),
        ("cache", CacheSpec.uniform(KVSlots(2, 8), 1), "cache plan covers 1"),
    ],
)
def test_each_plan_covers_exactly_the_layers(part: str, value: Any, named: str) -> None:
    """A plan of fewer layers would fail in the layer loop; one of more hides that a key was misread."""
    with pytest.raises(PlanError, match=rf"toy: the {named} layer\(s\), the model has 3"):
        plan(**{part: value})


class TestPositionLimit:
    def test_the_trained_context(self) -> None:
        assert plan().position_limit == 128
        assert plan(rope=rope(LinearScaling(factor=4.0))).position_limit == 128

    def test_a_recipe_may_reach_beyond_it(self) -> None:
        """Qwen2.5 documents YaRN by a factor of 4 and leaves max_position_embeddings: with the trained
        context as the limit, nobody could use what the recipe is for."""
        assert plan(rope=rope(YarnScaling(factor=4.0, original_length=128))).position_limit == 512
        assert plan(rope=rope(YarnScaling(factor=2.0, original_length=32))).position_limit == 128

    def test_dynamic_scaling_ends_at_the_trained_length(self) -> None:
        """Beyond it the published rule changes the base under keys that are cached already."""
        unfrozen = rope(DynamicScaling(factor=2.0, original_length=128))
        assert plan(rope=unfrozen).position_limit == 128
        inner = rope(DynamicScaling(factor=2.0, original_length=96))
        assert plan(rope=inner).position_limit == 96

    def test_a_frozen_base_holds_up_to_its_length(self) -> None:
        frozen = rope(DynamicScaling(factor=2.0, original_length=128, frozen_length=512))
        assert plan(rope=frozen).position_limit == 512

    def test_longrope_is_made_for_the_stated_context(self) -> None:
        scaling = LongRopeScaling(
            short_factor=(1.0,) * 4, long_factor=(2.0,) * 4, original_length=32, magnitude=1.0
        )
        assert plan(rope=rope(scaling)).position_limit == 128


class TestStructure:
    @pytest.mark.parametrize(
        "changes",
        [
            {"mask": MaskPlan((5, None), (0, 1, 0))},
            {"rope": RopePlan.single(RopeVariant(base=5e5, width=8), LAYERS)},
            {"rope": rope(LinearScaling(factor=4.0))},
            {"max_positions": 4096},
            {"notes": ("read with care",)},
        ],
        ids=["window width", "base", "table", "context", "notes"],
    )
    def test_data_costs_no_new_plan(self, changes: dict[str, Any]) -> None:
        """Folded into the key, a width or a base would drop a held step that serves as it is."""
        assert plan(**changes).structure == plan().structure

    @pytest.mark.parametrize(
        "changes",
        [
            {"family": "other"},
            {"vocab_size": 33},
            {"hidden_size": 64},
            {"norm": NormPlan("rms", 1e-5)},
            {"tied": True},
            {"embed_scale": 8.0},
            {"layers": (LayerPlan(replace(ATTENTION, scale=0.3), MLP),) * LAYERS},
            {"layers": (LayerPlan(ATTENTION, replace(MLP, activation="gelu")),) * LAYERS},
            {"mask": MaskPlan((16, None), (1, 0, 0))},
            {"mask": MaskPlan.dense(LAYERS)},
            {"rope": RopePlan((RopeVariant(base=1e4, width=8),), (0, None, 0))},
            {"rope": RopePlan.single(RopeVariant(base=1e4, width=4), LAYERS)},
            {"cache": CacheSpec.uniform(LatentSlots(8, 8), LAYERS)},
            {"numerics": Numerics(cache=torch.bfloat16)},
        ],
        ids=lambda changes: next(iter(changes)),
    )
    def test_what_wires_a_step_makes_another_key(self, changes: dict[str, Any]) -> None:
        """Left out of the key, two models that differ in it would replay each other's step."""
        assert plan(**changes).structure != plan().structure

    def test_the_key_is_hashable(self) -> None:
        assert {plan().structure: 1}[plan().structure] == 1


def test_plans_are_values_and_notes_are_no_part_of_them() -> None:
    assert plan() == plan()
    assert plan(notes=("read with care",)) == plan()
    assert plan(max_positions=4096) != plan()


def test_numerics_are_replaced_and_nothing_else() -> None:
    numerics = Numerics(weights=torch.bfloat16, activations=torch.float32, cache=torch.bfloat16)
    resolved = plan().with_numerics(numerics)
    assert resolved.numerics == numerics
    assert replace(resolved, numerics=Numerics()) == plan()
    assert resolved.notes == plan().notes


def test_parts_read_as_text() -> None:
    assert str(ATTENTION) == "attention 4q/2kv x 8, bias qkv"
    assert str(replace(ATTENTION, qkv_bias=False)) == "attention 4q/2kv x 8, bias none"
    assert str(replace(ATTENTION, out_bias=True)) == "attention 4q/2kv x 8, bias qkv+out"
    assert str(MLP) == "gated mlp 64, silu"


def test_a_tied_head_adds_no_bias() -> None:
    """The embedding table has none: a bias that is planned for it would be dropped in silence."""
    with pytest.raises(PlanError, match="toy: the head is the embedding table"):
        plan(tied=True, head_bias=True)
