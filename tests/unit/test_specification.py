"""What the specification asks of a step that no file about one part holds; see docs/seed-map.md.

Letters: G key/value heads, S attended tokens, D head dim.
"""

import gc
import weakref
from collections.abc import Callable
from dataclasses import MISSING, fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import fuel_core.step
from fuel_core.blocks import Attention, Decoder, GatedMLP, normalisation
from fuel_core.decode.buffers import prefill_inputs
from fuel_core.family import Family
from fuel_core.ops.cached import attend_cpu
from fuel_core.plans import UNBOUNDED, MaskPlan, ModelPlan, RopePlan, YarnScaling, visible
from fuel_core.step import LayerStep, Step, StepTables
from fuel_core.testing import Case
from fuel_core.testing.checks import (
    cached_equals_one_shot,
    gap,
    held_step_equals_eager_step,
    step_operations,
    swapped_cache_rebinds,
)
from fuel_core.testing.dispatch import dispatched
from fuel_core.weights.initialise import randomise


@pytest.fixture
def case(qwen2: Family) -> Case:
    return Case.build(qwen2, "mixed-window")


def with_two_bases(case: Case) -> Case:
    first = case.plan.rope.variants[0]
    other = replace(first, base=5 * first.base)
    return case.with_plan(
        replace(case.plan, rope=RopePlan.per_layer_base(4, first, other, lambda layer: layer % 2 == 0))
    )


class ParallelLayer(nn.Module):
    """``x + mixer(norm(x)) + mlp(norm(x))``: the block that the specification kept off the shared path."""

    def __init__(self, plan: ModelPlan, layer: int) -> None:
        super().__init__()
        parts = plan.layers[layer]
        self.norm = normalisation(plan.hidden_size, plan.norm)
        self.mixer = Attention(plan.hidden_size, parts.mixer)
        self.mlp = GatedMLP(plan.hidden_size, parts.feed_forward)

    def forward(self, x_BTM: Tensor, step: LayerStep) -> Tensor:
        normed = self.norm(x_BTM)
        joined: Tensor = x_BTM + self.mixer(normed, step) + self.mlp(normed)
        return joined


class TestOneDriver:
    def test_serves_a_family_that_nobody_registered_with_a_layer_of_its_own(self, case: Case) -> None:
        """A driver that asks whom it drives works for the families that it was tested with."""
        plan = replace(case.plan, family="nobody")
        with torch.device("meta"):
            layers = [ParallelLayer(plan, layer) for layer in range(4)]
            decoder = Decoder(plan, layers=layers)
        randomise(decoder, torch.Generator().manual_seed(0))
        nobody = replace(case, decoder=decoder)
        for check in (cached_equals_one_shot, held_step_equals_eager_step, swapped_cache_rebinds):
            check(nobody)

    def test_every_path_runs_the_same_layers(self, case: Case) -> None:
        """A path with a body of its own drifts from the others unseen."""
        seen: list[int] = []
        for layer, module in enumerate(case.decoder.layers):
            module.register_forward_hook(lambda *_, layer=layer: seen.append(layer))
        session = case.session()
        paths: dict[str, Callable[[], object]] = {
            "one shot": lambda: case.one_shot([1, 2, 3]),
            "prefill": lambda: session.prefill([1, 2, 3]),
            "eager step": lambda: session.prefill([4]),
            "planned token": lambda: session.step([[5]]),
            "replay": lambda: session.step([[6]]),
        }
        for name, run in paths.items():
            seen.clear()
            run()
            assert seen == [0, 1, 2, 3], name

    def test_a_replay_writes_its_own_row_and_nothing_else(self, case: Case) -> None:
        session = case.session(rows=2)
        for row, cache in enumerate(session.caches):
            session.prefill(case.token_ids(seed=row)[:5], cache)
        session.step([[7]], session.caches[:1])
        plan = session.held_plan(session.caches[:1])
        assert plan is not None
        inputs = [plan.inputs.token_ids_BT, plan.inputs.positions_BT, plan.inputs.rows_B]
        model = [
            *case.decoder.parameters(),
            *(table.inverse_frequencies for table in case.decoder.tables.ropes),
        ]
        others = [row for row in range(3) if row != session.caches[0].row]
        pools = [tensor for layer in session.pool.layers for tensor in layer.tensors]
        kept = [*model, *(pool[row] for pool in pools for row in others), *(p[:, :, :6] for p in pools)]
        before = [tensor.clone() for tensor in kept]
        session.step([[8]], session.caches[:1])
        assert all(torch.equal(a, b) for a, b in zip(before, kept, strict=True))
        assert [tensor.item() for tensor in inputs] == [8, 6, session.caches[0].row]

    def test_a_dropped_plan_leaves_nothing(self, case: Case) -> None:
        """A plan that is given up holds buffers of a pool, or of a device, that must become free."""
        session = case.session(strict=False)
        foreign = case.pool(capacity=33)
        session.step([[1]], (foreign.acquire(),))
        plan: Any = session._plans[1]
        held = [weakref.ref(thing) for thing in (plan.step, plan.inputs.positions_BT, plan.pool)]
        session.step([[1]])
        assert session.counters.drops == 1
        del plan, foreign
        gc.collect()
        assert [thing() for thing in held] == [None, None, None]


class TestWhatIsMadeOnceAStep:
    def test_cos_and_sin_once_a_recipe(self, case: Case) -> None:
        """Made anew in every layer they cost more than the norms, and could differ between layers."""
        assert step_operations(case).count("aten.cos.default") == 1
        assert step_operations(with_two_bases(case)).count("aten.cos.default") == 2

    def test_a_mask_once_a_width_and_none_for_one_token(
        self, case: Case, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made: list[int] = []

        def counted(query: Tensor, key: Tensor, window: Tensor) -> Tensor:
            made.append(int(window))
            return visible(query, key, window)

        monkeypatch.setattr(fuel_core.step, "visible", counted)
        session = case.session()
        session.prefill(case.token_ids(seed=1)[:9], chunk_tokens=9)
        assert sorted(made) == [5, UNBOUNDED]
        session.step([[1]])
        session.step([[2]])
        assert len(made) == 2

    def test_each_layer_gets_window_and_mask_of_one_entry(self, case: Case) -> None:
        """A kernel that is told "dense" beside a mask that says "window" drops the window where the
        mask is not read."""
        plan, pool = case.plan, case.pool()
        inputs = prefill_inputs(pool.acquire(), range(7), 0)
        step: Any = Step.cached(plan, StepTables.of(plan, torch.device("cpu")), inputs, pool.layers, 7)
        positions = torch.arange(7)
        for index in range(4):
            layer = step.layer(index)
            assert int(layer.window) == (plan.mask.window(index) or UNBOUNDED)
            assert torch.equal(layer.mask_TS, visible(positions[:, None], positions, layer.window))


def test_a_window_shows_where_it_first_bites(case: Case) -> None:
    """Agreement before that position and difference at it: a test that sees only one of them may be
    measuring something else."""
    tokens = case.token_ids(seed=1)[:12]
    dense = case.with_plan(replace(case.plan, mask=MaskPlan.dense(4)))
    windowed, plain = (model.decode(model.session(), tokens, prefilled=3) for model in (case, dense))
    apart = [gap(windowed[position], plain[position]) for position in range(12)]
    assert max(apart[:5]) < 1e-10, "a window of 5 hides nothing from the first five tokens"
    assert min(apart[5:]) > 1e-3


class TestEmbeddingScale:
    def test_none_takes_no_operation_and_a_scale_takes_one(self, case: Case) -> None:
        ids = torch.tensor([[1]])

        def operations(scale: float | None) -> list[str]:
            decoder = case.with_plan(replace(case.plan, embed_scale=scale)).decoder
            return dispatched(lambda: decoder.embeddings(ids))

        assert operations(None) == ["aten.embedding.default"]
        assert operations(3.7) == ["aten.embedding.default", "aten.mul.Tensor"]

    def test_is_applied_before_the_cast(self, qwen2: Family) -> None:
        """After the cast it rounds to bfloat16 what prefill had in float32; in float32 none of it shows."""
        scale = 3.7
        case = Case.build(qwen2, "dense", dtype=torch.float32)
        ids = torch.tensor([case.token_ids(seed=1)])
        table = case.decoder.embed.weight
        for dtype, order_matters in ((torch.float32, False), (torch.bfloat16, True)):
            numerics = replace(case.plan.numerics, activations=dtype)
            scaled = case.with_plan(replace(case.plan, embed_scale=scale, numerics=numerics)).decoder
            before, after = (table[ids] * scale).to(dtype), table[ids].to(dtype) * scale
            assert torch.equal(scaled.embeddings(ids), before)
            assert torch.equal(before, after) is not order_matters


class TestRecipesByLayer:
    def test_one_of_two_may_be_scaled(self, case: Case) -> None:
        """The specification refuses a scaling beside a second base; here each recipe has its own."""
        two = with_two_bases(case)
        first, second = two.plan.rope.variants
        stretched = replace(second, scaling=YarnScaling(factor=4.0, original_length=16))
        scaled = two.with_plan(replace(two.plan, rope=RopePlan((first, stretched), two.plan.rope.per_layer)))
        cached_equals_one_shot(scaled)
        tables = scaled.decoder.tables.ropes
        assert torch.equal(tables[0].inverse_frequencies, first.inverse_frequencies()[0])
        assert torch.equal(tables[1].inverse_frequencies, stretched.inverse_frequencies()[0])
        tokens = case.token_ids(seed=1)
        assert gap(scaled.one_shot(tokens), two.one_shot(tokens)) > 1e-3

    def test_a_base_is_data_to_a_held_plan(self, case: Case) -> None:
        """Another base over the same weights is served by the plan that is held, with its own tables."""
        (variant,) = case.plan.rope.variants
        other = case.with_plan(
            replace(case.plan, rope=RopePlan.single(replace(variant, base=5 * variant.base), 4))
        )
        tokens = case.token_ids(seed=1)[:12]
        session = case.session()
        for model in (case, other):
            session.decoder = model.decoder
            session.caches[0].reset()
            found = case.decode(session, tokens, prefilled=8)
            assert gap(found, model.one_shot(tokens)) < 1e-10
        assert session.counters.plans == 1
        assert gap(case.one_shot(tokens), other.one_shot(tokens)) > 1e-3

    @pytest.mark.parametrize("width", [4, 8])
    def test_a_head_may_be_rotated_in_part(self, case: Case, width: int) -> None:
        (variant,) = case.plan.rope.variants
        partly = case.with_plan(replace(case.plan, rope=RopePlan.single(replace(variant, width=width), 4)))
        cached_equals_one_shot(partly)
        assert (partly.plan.structure == case.plan.structure) is (width == 8)

    def test_layers_may_go_without(self, case: Case) -> None:
        """Skipping is no recipe: it needs no table and takes fewer operations."""
        skipping = case.with_plan(replace(case.plan, rope=replace(case.plan.rope, per_layer=(0, None, 0, 0))))
        cached_equals_one_shot(skipping)
        assert len(skipping.decoder.tables.ropes) == 1
        assert len(step_operations(skipping)) < len(step_operations(case))


def test_nothing_that_a_family_states_has_a_default() -> None:
    """A default mask or RoPE plan is right for simple families and silently wrong for the next."""
    decided_later = {"numerics", "notes"}
    for contract in (Family, ModelPlan):
        defaulted = {
            field.name
            for field in fields(contract)
            if field.default is not MISSING or field.default_factory is not MISSING
        }
        assert defaulted <= decided_later, contract


class LargestTensor(TorchDispatchMode):
    """Records how many elements the largest tensor has that an operation makes."""

    elements = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor):
            self.elements = max(self.elements, out.numel())
        return out


@pytest.mark.parametrize("softcap", [None, 5.0])
def test_grouped_queries_expand_no_cache(softcap: float | None) -> None:
    """Repeating keys for every query head copies the cache H/G times at every token."""
    heads, groups, held, dim = 16, 2, 64, 32
    pool = torch.randn(1, groups, held, dim)
    q, k, v = torch.randn(1, 1, heads, dim), torch.randn(1, 1, groups, dim), torch.randn(1, 1, groups, dim)
    row, position, window = torch.tensor([0]), torch.tensor([[held - 1]]), torch.tensor(UNBOUNDED)
    with LargestTensor() as largest:
        attend_cpu(q, k, v, pool, pool.clone(), row, position, window, None, 0.2, softcap)
    assert largest.elements <= groups * held * dim


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_logits_leave_in_float32(qwen2: Family, dtype: torch.dtype) -> None:
    """Half-precision logits tie, and a caller that reads their bytes as float32 reads noise."""
    case = Case.build(qwen2, "dense", dtype=dtype)
    session = case.session()
    found = [
        case.one_shot([1, 2, 3]),
        session.prefill([1, 2, 3]),
        session.step([[4]]),
        session.step([[5]]),
    ]
    assert {logits.dtype for logits in found} == {torch.float32}
