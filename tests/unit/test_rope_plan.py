"""RoPE recipes and the one that each layer uses."""

import pytest
import torch

from fuel_core.errors import PlanError
from fuel_core.plans import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    RopePlan,
    RopeVariant,
    Scaling,
    YarnScaling,
)

LOCAL = RopeVariant(base=1e4, width=8)
GLOBAL = RopeVariant(base=1e6, width=8)


def longrope(original_length: int, **changes: float) -> LongRopeScaling:
    return LongRopeScaling(
        short_factor=(1.0, 1.1, 1.2, 1.3),
        long_factor=(2.1, 3.1, 4.1, 5.1),
        original_length=original_length,
        magnitude=1.1,
        **changes,
    )


class TestConstructors:
    def test_single(self) -> None:
        plan = RopePlan.single(LOCAL, 3)
        assert plan == RopePlan((LOCAL,), (0, 0, 0))
        assert [plan.variant(layer) for layer in range(3)] == [LOCAL] * 3
        assert plan.layers == 3

    def test_two_bases_by_layer(self) -> None:
        plan = RopePlan.per_layer_base(4, LOCAL, GLOBAL, lambda layer: layer % 2 == 0)
        assert plan == RopePlan((LOCAL, GLOBAL), (0, 1, 0, 1))
        assert [plan.variant(layer).base for layer in range(4)] == [1e4, 1e6, 1e4, 1e6]

    def test_the_first_recipe_stays_first(self) -> None:
        plan = RopePlan.per_layer_base(3, LOCAL, GLOBAL, lambda layer: layer == 2)
        assert plan == RopePlan((LOCAL, GLOBAL), (1, 1, 0))

    def test_equal_recipes_collapse(self) -> None:
        """A plan of two equal bases looks dual-base while every layer reads the same table."""
        twin = RopeVariant(base=1e4, width=8)
        assert RopePlan.per_layer_base(4, LOCAL, twin, lambda layer: layer < 2) == RopePlan.single(LOCAL, 4)

    def test_a_constant_choice_collapses_to_the_chosen_recipe(self) -> None:
        assert RopePlan.per_layer_base(2, LOCAL, GLOBAL, lambda _: True) == RopePlan.single(LOCAL, 2)
        assert RopePlan.per_layer_base(2, LOCAL, GLOBAL, lambda _: False) == RopePlan.single(GLOBAL, 2)

    def test_layers_without_rope(self) -> None:
        """Skipping RoPE is no recipe: a layer that skips reads no table."""
        plan = RopePlan((LOCAL,), (0, None, 0))
        assert plan.variant(1) is None
        assert RopePlan((), (None, None)).variant(0) is None
        assert RopePlan((), (None,)).regimes == 1
        assert RopePlan((), (None,)).regime(10) == 0


class TestValidation:
    def test_an_unknown_recipe_names_layer_and_variant(self) -> None:
        """A layer silently rotated at another frequency answers fluently and wrongly."""
        with pytest.raises(PlanError, match=r"RoPE plan gives layer 1 variant 1, .* 1 variant"):
            RopePlan((LOCAL,), (0, 1))

    def test_a_plan_needs_a_recipe_and_a_layer(self) -> None:
        with pytest.raises(PlanError, match="no variant"):
            RopePlan((), (0,))
        with pytest.raises(PlanError, match="no layer"):
            RopePlan((LOCAL,), ())

    def test_an_unused_recipe_is_refused(self) -> None:
        with pytest.raises(PlanError, match=r"variant\(s\) \[1\]"):
            RopePlan((LOCAL, GLOBAL), (0, 0))

    @pytest.mark.parametrize("width", [0, -2, 1, 7])
    def test_an_odd_or_empty_width(self, width: int) -> None:
        with pytest.raises(PlanError, match=f"even number of dimensions, got {width}"):
            RopeVariant(base=1e4, width=width)

    @pytest.mark.parametrize("base", [0.0, -1e4, 1.0, float("nan"), float("inf"), 1e39])
    def test_a_base_that_makes_no_table(self, base: float) -> None:
        """Beyond float32 the wavelengths are infinite, and at 1 they are all the same: silent either way."""
        with pytest.raises(PlanError, match="rope_theta"):
            RopeVariant(base=base, width=8)

    def test_recipes_that_switch_at_different_lengths(self) -> None:
        """A sequence is in one regime; with two lengths, one recipe would use the wrong table."""
        early, late = (RopeVariant(base=1e4, width=8, scaling=longrope(n)) for n in (16, 32))
        with pytest.raises(PlanError, match=r"\[16, 32\]"):
            RopePlan((early, late), (0, 1))
        other_base = RopeVariant(base=1e6, width=8, scaling=longrope(16))
        plan = RopePlan((early, other_base, LOCAL), (0, 1, 2))
        assert [plan.regime(length) for length in (1, 16, 17)] == [0, 0, 1]
        assert plan.regimes == 2

    @pytest.mark.parametrize(
        ("scaling", "named"),
        [
            (DynamicScaling(factor=2.0, original_length=64), "width above 2"),
            (longrope(16), "short_factor has 4 entries, .* width of 2 has 1 pairs"),
            (YarnScaling(factor=4.0, original_length=64, attention_factor=0.0), "cos and sin by 0.0"),
            (
                YarnScaling(factor=4.0, original_length=64, attention_factor=float("nan")),
                "cos and sin by nan",
            ),
        ],
    )
    def test_a_scaling_that_does_not_fit_the_width_or_makes_no_table(
        self, scaling: Scaling, named: str
    ) -> None:
        with pytest.raises(PlanError, match=named):
            RopeVariant(base=1e4, width=2, scaling=scaling)

    def test_a_scaling_that_contradicts_itself(self) -> None:
        """With its ends exchanged, a blend or a ramp runs the wrong way, and every number looks fine."""
        with pytest.raises(PlanError, match=r"high_freq_factor \(1.0\) above low_freq_factor \(4.0\)"):
            Llama3Scaling(factor=8.0, low_freq_factor=4.0, high_freq_factor=1.0, original_length=64)
        with pytest.raises(PlanError, match=r"high_freq_factor \(4.0\) above low_freq_factor \(4.0\)"):
            Llama3Scaling(factor=8.0, low_freq_factor=4.0, high_freq_factor=4.0, original_length=64)
        with pytest.raises(PlanError, match=r"beta_fast \(1.0\) at or above beta_slow \(32.0\)"):
            YarnScaling(factor=4.0, original_length=64, beta_fast=1.0, beta_slow=32.0)

    def test_both_factor_lists_are_counted(self) -> None:
        uneven = LongRopeScaling(
            short_factor=(1.0,) * 4, long_factor=(2.0,) * 3, original_length=16, magnitude=1.0
        )
        with pytest.raises(PlanError, match="long_factor has 3 entries"):
            RopeVariant(base=1e4, width=8, scaling=uneven)


class TestLimits:
    def test_most_recipes_have_none(self) -> None:
        plan = RopePlan.single(RopeVariant(base=1e4, width=8, scaling=LinearScaling(factor=2.0)), 1)
        assert plan.position_limit is None
        assert plan.reach is None

    def test_the_lowest_limit_and_the_farthest_reach_of_all_recipes_count(self) -> None:
        limited = [
            RopeVariant(base=1e4, width=8, scaling=DynamicScaling(factor=2.0, original_length=n))
            for n in (64, 32)
        ]
        stretched = [
            RopeVariant(base=1e4, width=8, scaling=YarnScaling(factor=factor, original_length=16))
            for factor in (4.0, 2.0)
        ]
        plan = RopePlan((*limited, *stretched, LOCAL), (0, 1, 2, 3, 4))
        assert plan.position_limit == 32
        assert plan.reach == 64


class TestStructure:
    def test_bases_and_table_contents_are_data(self) -> None:
        """A changed base must not cost a new plan: the step reads a table, whatever is in it."""
        assert RopePlan.single(LOCAL, 2).structure == RopePlan.single(GLOBAL, 2).structure
        linear = RopeVariant(base=1e4, width=8, scaling=LinearScaling(factor=2.0))
        assert RopePlan.single(LOCAL, 2).structure == RopePlan.single(linear, 2).structure

    @pytest.mark.parametrize(
        "other",
        [
            RopePlan((LOCAL, GLOBAL), (1, 0)),
            RopePlan((LOCAL,), (0, None)),
            RopePlan.single(LOCAL, 2),
            RopePlan((LOCAL, RopeVariant(base=1e6, width=4)), (0, 1)),
            RopePlan((LOCAL, RopeVariant(base=1e6, width=8, layout="interleaved")), (0, 1)),
            RopePlan((LOCAL, RopeVariant(base=1e6, width=8, scaling=longrope(16))), (0, 1)),
            RopePlan(
                (
                    LOCAL,
                    RopeVariant(base=1e6, width=8, scaling=YarnScaling(factor=4.0, original_length=16)),
                ),
                (0, 1),
            ),
        ],
        ids=["assignment", "a layer without", "one recipe", "width", "layout", "regimes", "magnitude"],
    )
    def test_what_the_step_is_wired_by_is_not(self, other: RopePlan) -> None:
        plan = RopePlan((LOCAL, GLOBAL), (0, 1))
        assert plan.structure != other.structure
        hash(plan.structure)


def test_tables_are_float32_on_the_cpu_whatever_torch_defaults_to() -> None:
    """A model is built under a meta device, and someone's default dtype may be bfloat16: a table made
    under either would be empty, or rounded to eight bits."""
    scalings: list[Scaling] = [
        LinearScaling(factor=2.0),
        DynamicScaling(factor=2.0, original_length=16, frozen_length=64),
        Llama3Scaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_length=64),
        YarnScaling(factor=4.0, original_length=16),
        longrope(16),
    ]
    variants = [LOCAL, *(RopeVariant(base=1e4, width=8, scaling=scaling) for scaling in scalings)]
    plain = [variant.inverse_frequencies() for variant in variants]
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            built = [variant.inverse_frequencies() for variant in variants]
    finally:
        torch.set_default_dtype(before)
    for expected, table in zip(plain, built, strict=True):
        assert table.dtype == torch.float32
        assert table.device.type == "cpu"
        assert torch.equal(table, expected)
