"""Windows: the one predicate, the plan of layers, and the masks that a step makes of it."""

from dataclasses import FrozenInstanceError
from typing import Any

import pytest
import torch

from fuel_core.errors import ConfigError, PlanError
from fuel_core.plans import (
    UNBOUNDED,
    CacheSpec,
    KVSlots,
    LayerPlan,
    MaskPlan,
    ModelPlan,
    NormPlan,
    RopePlan,
    RopeVariant,
    first_visible,
    visible,
)
from fuel_core.step import Step, StepInputs, StepTables


def seen(window: int, length: int) -> list[list[int]]:
    """The keys that each query of a sequence sees, by the rule's words: W keys, itself the last."""
    return [list(range(length))[: query + 1][-window:] for query in range(length)]


def model(mask: MaskPlan) -> ModelPlan:
    layers = mask.layers
    return ModelPlan(
        family="toy",
        vocab_size=8,
        hidden_size=4,
        max_positions=64,
        norm=NormPlan("rms", 1e-6),
        tied=True,
        embed_scale=None,
        head_bias=False,
        layers=(LayerPlan("mixer", "mlp"),) * layers,
        mask=mask,
        rope=RopePlan.single(RopeVariant(base=10.0, width=4), layers),
        cache=CacheSpec.uniform(KVSlots(1, 4), layers),
    )


def cached_step(mask: MaskPlan, first: int, tokens: int, attended: int) -> Step:
    """A step of ``tokens`` tokens from position ``first`` on; nothing here reads a cache."""
    plan = model(mask)
    positions = torch.arange(first, first + tokens)[None]
    row = torch.zeros(1, dtype=torch.int64)
    buffers: Any = [None] * mask.layers
    inputs = StepInputs(torch.zeros_like(positions), positions, row, row)
    return Step.cached(plan, StepTables.of(plan, torch.device("cpu")), inputs, buffers, attended)


def rows(mask_TS: torch.Tensor) -> list[list[int]]:
    return [row.nonzero().flatten().tolist() for row in mask_TS]


class TestPredicate:
    def test_a_window_counts_the_query_itself(self) -> None:
        """Kernels saw W + 1 keys, or W - 1, because the left width of a kernel excludes the query."""
        lowest = [max(0, first_visible(query, 4)) for query in range(8)]
        assert lowest == [0, 0, 0, 0, 1, 2, 3, 4]
        counts = [sum(visible(query, key, 4) for key in range(8)) for query in range(8)]
        assert counts == [1, 2, 3, 4, 4, 4, 4, 4]

    @pytest.mark.parametrize("window", [1, 2, 5, 7, 8, 9])
    def test_numbers_and_tensors_agree_with_the_words(self, window: int) -> None:
        length = 8
        positions = torch.arange(length)
        table = visible(positions[:, None], positions[None], torch.tensor(window))
        assert rows(table) == seen(window, length)
        assert [[k for k in range(length) if visible(q, k, window)] for q in range(length)] == seen(
            window, length
        )

    def test_no_window_sees_all_up_to_the_query_and_never_beyond(self) -> None:
        positions = torch.tensor([0, 5, 131_071])
        assert visible(positions, positions, UNBOUNDED).all()
        assert visible(positions, torch.zeros(3, dtype=torch.int64), UNBOUNDED).all()
        assert not visible(positions, positions + 1, UNBOUNDED).any()


class TestStepMasks:
    def test_prefill_in_one_step(self) -> None:
        """A mask builder that knows a window of its own drifts from the kernels by one key."""
        step = cached_step(MaskPlan((4, None), (0, 1)), first=0, tokens=8, attended=8)
        assert rows(step.layer(0).mask_TS) == seen(4, 8)
        assert rows(step.layer(1).mask_TS) == seen(8, 8)

    def test_a_chunk_that_straddles_the_window(self) -> None:
        step = cached_step(MaskPlan((4,), (0,)), first=3, tokens=5, attended=8)
        assert rows(step.layer(0).mask_TS) == seen(4, 8)[3:]

    def test_one_token_needs_no_mask_but_its_window(self) -> None:
        """Token-by-token decode once attended to the whole cache while prefill was windowed."""
        mask = MaskPlan((4, None), (0, 1))
        for position in range(8):
            step = cached_step(mask, first=position, tokens=1, attended=position + 1)
            assert [layer.mask_TS for layer in step.layers] == [None, None]
            windows = [int(layer.window) for layer in step.layers]
            assert windows == [4, UNBOUNDED]
            lowest = max(0, first_visible(position, windows[0]))
            assert list(range(lowest, position + 1)) == seen(4, 8)[position]

    def test_one_shot_masks_are_the_same(self) -> None:
        plan = model(MaskPlan((4, None), (0, 1)))
        positions = torch.arange(8)[None]
        tables = StepTables.of(plan, torch.device("cpu"))
        step = Step.one_shot(plan, tables, positions, torch.zeros(1, dtype=torch.int64))
        assert rows(step.layer(0).mask) == seen(4, 8)
        assert rows(step.layer(1).mask) == seen(8, 8)

    def test_a_callers_mask_replaces_every_layers(self) -> None:
        plan = model(MaskPlan((4, None), (0, 1)))
        everything = torch.ones(8, 8, dtype=torch.bool)
        step = Step.one_shot(
            plan,
            StepTables.of(plan, torch.device("cpu")),
            torch.arange(8)[None],
            torch.zeros(1, dtype=torch.int64),
            everything,
        )
        assert all(layer.mask is everything for layer in step.layers)

    @pytest.mark.parametrize(("held", "tokens", "layers"), [(0, 2, 2), (3, 2, 4), (0, 5, 1), (2, 3, 3)])
    def test_a_uniform_plan_is_the_plain_causal_mask_and_makes_it_once(
        self, held: int, tokens: int, layers: int
    ) -> None:
        """Dense families must pay nothing for the windows of others: one mask, equal to plain causal."""
        step = cached_step(MaskPlan.dense(layers), first=held, tokens=tokens, attended=held + tokens)
        causal = torch.ones(held + tokens, held + tokens, dtype=torch.bool).tril()[held:]
        assert torch.equal(step.layer(0).mask_TS, causal)
        assert len({id(layer.mask_TS) for layer in step.layers}) == 1

    @pytest.mark.parametrize("window", [8, 9, 1000])
    def test_a_window_as_wide_as_the_sequence_is_none(self, window: int) -> None:
        windowed = cached_step(MaskPlan((window,), (0,)), first=0, tokens=8, attended=8)
        dense = cached_step(MaskPlan.dense(1), first=0, tokens=8, attended=8)
        assert torch.equal(windowed.layer(0).mask_TS, dense.layer(0).mask_TS)


class TestConstructors:
    def test_dense(self) -> None:
        assert MaskPlan.dense(3) == MaskPlan((None,), (0, 0, 0))
        assert [MaskPlan.dense(3).window(layer) for layer in range(3)] == [None] * 3

    @pytest.mark.parametrize("split", [0, -3])
    def test_a_split_before_every_layer_is_dense(self, split: int) -> None:
        assert MaskPlan.split_window(4, split, 8) == MaskPlan.dense(4)

    @pytest.mark.parametrize("split", [4, 9])
    def test_a_split_after_every_layer_is_one_windowed_variant(self, split: int) -> None:
        """Collapsing a constant choice must keep the window: collapsed to dense it is silently lost."""
        plan = MaskPlan.split_window(4, split, 8)
        assert plan == MaskPlan((8,), (0, 0, 0, 0))
        bites = cached_step(plan, first=0, tokens=10, attended=10).layer(0).mask_TS
        dense = cached_step(MaskPlan.dense(4), first=0, tokens=10, attended=10).layer(0).mask_TS
        assert not torch.equal(bites, dense), "ten tokens outrun a window of eight"

    def test_a_mixed_split_keeps_both_and_the_window_comes_first(self) -> None:
        """The order of variants is part of a held step: two orders of one model would plan twice."""
        plan = MaskPlan.split_window(4, 2, 8)
        assert plan == MaskPlan((8, None), (0, 0, 1, 1))
        assert [plan.window(layer) for layer in range(4)] == [8, 8, None, None]

    def test_any_choice_of_layers(self) -> None:
        plan = MaskPlan.per_layer_window(7, 5, lambda layer: (layer + 1) % 3 > 0)
        assert [plan.window(layer) for layer in range(7)] == [5, 5, None, 5, 5, None, 5]
        assert plan.windows == (5, None)

    def test_a_choice_that_starts_dense_still_lists_the_window_first(self) -> None:
        plan = MaskPlan.per_layer_window(3, 5, lambda layer: layer == 2)
        assert plan == MaskPlan((5, None), (1, 1, 0))

    @pytest.mark.parametrize("window", [None, 0])
    def test_no_width_is_no_window(self, window: int | None) -> None:
        assert MaskPlan.per_layer_window(3, window, lambda layer: True) == MaskPlan.dense(3)
        assert MaskPlan.split_window(3, 3, window) == MaskPlan.dense(3)

    def test_layer_types(self) -> None:
        kinds = ["full_attention", "sliding_attention", "full_attention"]
        assert MaskPlan.from_layer_types(kinds, 6) == MaskPlan((6, None), (1, 0, 1))
        assert MaskPlan.from_layer_types(["sliding_attention"] * 2, 6) == MaskPlan((6,), (0, 0))
        assert MaskPlan.from_layer_types(["full_attention"] * 2, None) == MaskPlan.dense(2)

    def test_an_unknown_layer_type_names_layer_and_type(self) -> None:
        with pytest.raises(ConfigError, match=r"layer_types\[1\] is 'chunked_attention'.*full_attention"):
            MaskPlan.from_layer_types(["full_attention", "chunked_attention"], 6)

    @pytest.mark.parametrize("window", [None, 0])
    def test_a_sliding_layer_without_a_window_is_refused(self, window: int | None) -> None:
        with pytest.raises(ConfigError, match=rf"layer_types\[1\] slides, but sliding_window is {window}"):
            MaskPlan.from_layer_types(["full_attention", "sliding_attention"], window)


class TestValidation:
    def test_an_unknown_variant_names_layer_and_variant(self) -> None:
        """An index out of range would surface deep in the layer loop, or as a silently wrong mask."""
        with pytest.raises(PlanError, match=r"mask plan gives layer 1 variant 1, .* 1 variant"):
            MaskPlan((None,), (0, 1))
        with pytest.raises(PlanError, match=r"layer 0 variant -1"):
            MaskPlan((None,), (-1,))

    def test_a_plan_needs_a_variant_and_a_layer(self) -> None:
        with pytest.raises(PlanError, match="no variant"):
            MaskPlan((), (0,))
        with pytest.raises(PlanError, match="no layer"):
            MaskPlan((None,), ())

    def test_a_variant_that_no_layer_uses_is_refused(self) -> None:
        with pytest.raises(PlanError, match=r"variant\(s\) \[0, 2\]"):
            MaskPlan((4, 5, None), (1, 1))

    @pytest.mark.parametrize("window", [0, -1, UNBOUNDED, 2**63])
    def test_a_width_that_is_no_width_names_the_variant(self, window: int) -> None:
        """Zero is "no window" in a config; as a width it would blind every query, to itself as well."""
        with pytest.raises(PlanError, match=rf"mask variant 1 has a window of {window} "):
            MaskPlan((None, window), (0, 1))

    def test_plans_are_values(self) -> None:
        plan = MaskPlan((4, None), (0, 1))
        assert plan == MaskPlan((4, None), (0, 1))
        assert {plan: 1}[MaskPlan((4, None), (0, 1))] == 1
        assert plan != MaskPlan((4, None), (1, 0))
        assert plan.layers == 2
        with pytest.raises(FrozenInstanceError):
            plan.windows = (5, None)  # type: ignore[misc]


class TestStructure:
    def test_widths_are_data(self) -> None:
        """A held step replayed for another width must not be planned anew: the width is an input."""
        assert MaskPlan((4, None), (0, 1)).structure == MaskPlan((9, None), (0, 1)).structure
        assert MaskPlan((4,), (0, 0)).structure == MaskPlan.dense(2).structure

    def test_the_assignment_is_not(self) -> None:
        """Two models of one width but other sliding layers shared a step, so one ran with the other's."""
        first = MaskPlan((4, None), (0, 1))
        assert first.structure != MaskPlan((4, None), (1, 0)).structure
        assert first.structure != MaskPlan.dense(2).structure
        assert MaskPlan.dense(2).structure != MaskPlan.dense(3).structure
        hash(first.structure)
