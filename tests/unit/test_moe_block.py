"""The block of routed and shared experts."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fuel_core.blocks import Decoder, GatedMLP, MoE, moe, pre_norm_decoder
from fuel_core.errors import PlanError
from fuel_core.family import Family
from fuel_core.ops.experts import FEW_TOKENS
from fuel_core.plans import GatedMLPPlan, MoEPlan, RouterPlan
from fuel_core.testing import Case
from fuel_core.weights.initialise import initialise, randomise
from fuel_core.weights.names import WeightNames, sources

HIDDEN = 10
ROUTER = RouterPlan(experts=6, chosen=2, scoring="softmax", normalise=False, scale=16.0)
SHARED = GatedMLPPlan(width=14, activation="gelu")
PLAN = MoEPlan(router=ROUTER, expert_width=7, activation="silu", shared=SHARED, shared_gate=False)


def filled(block: MoE, dtype: torch.dtype = torch.float64) -> MoE:
    draw = torch.Generator().manual_seed(0)
    for parameter in block.to(dtype).parameters():
        nn.init.normal_(parameter, generator=draw)
    return block


def tokens(*shape: int) -> Tensor:
    draw = torch.Generator().manual_seed(1)
    return torch.randn(*shape, HIDDEN, generator=draw, dtype=torch.float64)


def by_formula(block: MoE, x_NM: Tensor) -> Tensor:
    """The routed experts, each built as a gated MLP of its own."""
    ids, weights = block.router(x_NM)
    experts = []
    for gate_up, down in zip(block.experts.gate_up.weight, block.experts.down.weight, strict=True):
        expert = GatedMLP(HIDDEN, GatedMLPPlan(width=down.shape[1], activation="silu"))
        expert.gate_up.weight, expert.down.weight = nn.Parameter(gate_up), nn.Parameter(down)
        experts.append(expert)
    rows = [
        sum((weight * experts[int(index)](x) for index, weight in zip(row_ids, row, strict=True)), 0 * x)
        for x, row_ids, row in zip(x_NM, ids, weights, strict=True)
    ]
    return torch.stack(rows)


@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (2, 40)])
def test_routed_and_shared_experts_are_added(shape: tuple[int, int]) -> None:
    """The factor 16 is the routed experts' alone."""
    block, x = filled(moe(HIDDEN, PLAN)), tokens(*shape)
    right = by_formula(block, x.flatten(0, 1)).view(x.shape) + block.shared(x)
    torch.testing.assert_close(block(x), right, atol=1e-10, rtol=1e-12)


def test_no_shared_experts_is_no_branch() -> None:
    block, x = filled(moe(HIDDEN, replace(PLAN, shared=None))), tokens(1, 5)
    assert not [name for name, _ in block.named_parameters() if "shared" in name]
    torch.testing.assert_close(block(x)[0], by_formula(block, x[0]), atol=1e-10, rtol=1e-12)


def test_the_gate_weighs_the_shared_experts_alone() -> None:
    block, x = filled(moe(HIDDEN, replace(PLAN, shared_gate=True))), tokens(1, 3)
    with torch.no_grad():
        block.shared_gate.weight.zero_()[0, 0] = 1.0
    x[0, :, 0] = torch.tensor([-2.0, 0.0, 2.0])
    factors = torch.tensor([0.119203, 0.5, 0.880797], dtype=torch.float64)
    found = block(x)[0] - by_formula(block, x[0])
    right = factors[:, None] * block.shared(x)[0]
    torch.testing.assert_close(found, right, atol=0, rtol=2e-6)


def test_a_gate_without_shared_experts_is_refused() -> None:
    with pytest.raises(PlanError, match="shared"):
        replace(PLAN, shared=None, shared_gate=True)


def test_a_family_may_bring_its_own_router() -> None:
    class SecondAndThird(nn.Module):
        def forward(self, x_NM: Tensor) -> tuple[Tensor, Tensor]:
            ids = torch.tensor([[1, 2]]).expand(x_NM.shape[0], 2)
            return ids, torch.full(ids.shape, 0.5, dtype=x_NM.dtype)

    block, x = filled(MoE(HIDDEN, replace(PLAN, shared=None), SecondAndThird())), tokens(1, 4)
    torch.testing.assert_close(block(x)[0], by_formula(block, x[0]), atol=1e-10, rtol=1e-12)


def test_every_parameter_is_trained() -> None:
    plan = replace(PLAN, shared_gate=True, router=replace(ROUTER, normalise=True))
    block, x = filled(moe(HIDDEN, plan)), tokens(2, 40)
    block(x).square().sum().backward()
    for name, parameter in block.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, inside its tracer
@pytest.mark.parametrize("rows", [1, 3])
def test_a_step_is_one_graph(rows: int) -> None:
    router = RouterPlan(
        experts=6,
        chosen=2,
        scoring="sigmoid",
        normalise=True,
        groups=3,
        groups_chosen=2,
        group_score="top2",
        correction_bias=True,
        scale=2.5,
    )
    block = filled(moe(HIDDEN, replace(PLAN, router=router, shared_gate=True)))
    torch._dynamo.reset()
    compiled = torch.compile(block, fullgraph=True, backend="eager")
    with torch.no_grad():
        for token in tokens(4, rows, 1):
            torch.testing.assert_close(compiled(token), block(token), atol=1e-12, rtol=0)


def test_checkpoints_store_one_tensor_a_part_of_an_expert() -> None:
    router = replace(ROUTER, correction_bias=True)
    with torch.device("meta"):
        block = moe(HIDDEN, replace(PLAN, router=router))
    names = WeightNames(
        modules={
            "router": "mlp.gate",
            "experts.gate_up": "mlp.experts.{expert}.{part}_proj",
            "experts.down": "mlp.experts.{expert}.down_proj",
            "shared.gate_up": "mlp.shared_experts.{part}_proj",
            "shared.down": "mlp.shared_experts.down_proj",
        },
        excused=(),
    )
    shapes = {source.tensor: source.shape for source in sources(block, names)}
    experts = {
        f"mlp.experts.{expert}.{part}_proj.weight": (HIDDEN, 7) if part == "down" else (7, HIDDEN)
        for expert in range(6)
        for part in ("gate", "up", "down")
    }
    assert shapes == experts | {
        "mlp.gate.weight": (6, HIDDEN),
        "mlp.gate.e_score_correction_bias": (6,),
        "mlp.shared_experts.gate_proj.weight": (14, HIDDEN),
        "mlp.shared_experts.up_proj.weight": (14, HIDDEN),
        "mlp.shared_experts.down_proj.weight": (HIDDEN, 14),
    }


def decoder_of_experts(qwen2: Family) -> Decoder:
    plan = Case.build(qwen2, "dense").plan
    feed_forward = replace(PLAN, router=replace(ROUTER, correction_bias=True))
    layers = tuple(replace(layer, feed_forward=feed_forward) for layer in plan.layers)
    with torch.device("meta"):
        return pre_norm_decoder(replace(plan, layers=layers), {MoEPlan: moe})


def blocks(decoder: Decoder) -> Iterator[MoE]:
    return (module for module in decoder.modules() if isinstance(module, MoE))


def test_training_starts_with_no_correction(qwen2: Family) -> None:
    """Named otherwise than ``bias``, it was taken for a norm's weight and set to 1."""
    decoder = decoder_of_experts(qwen2)
    initialise(decoder, torch.Generator().manual_seed(0))
    for block in blocks(decoder):
        assert not block.router.e_score_correction_bias.any()
        assert 0.01 < block.experts.gate_up.weight.std() < 0.03


def test_random_experts_are_scaled_by_their_inputs(qwen2: Family) -> None:
    decoder = decoder_of_experts(qwen2)
    randomise(decoder, torch.Generator().manual_seed(0))
    for block in blocks(decoder):
        assert abs(block.router.e_score_correction_bias.mean()) < 0.5
        for matrices in (block.experts.gate_up.weight, block.experts.down.weight):
            assert float(matrices.std() * matrices.shape[-1] ** 0.5) == pytest.approx(1.6, rel=0.1)


def test_prefill_equals_token_by_token() -> None:
    """The two sides of the kernel's switch from single tokens to groups."""
    block, x = filled(moe(HIDDEN, PLAN)), tokens(1, 3 * FEW_TOKENS)
    one_by_one = torch.cat([block(x[:, t : t + 1]) for t in range(x.shape[1])], dim=1)
    torch.testing.assert_close(block(x), one_by_one, atol=1e-10, rtol=1e-12)


def test_the_plan_is_readable() -> None:
    router = replace(ROUTER, groups=3, groups_chosen=2, group_score="max")
    found = str(replace(PLAN, router=router, shared_gate=True))
    assert found == "moe 2 of 6, softmax, groups 2 of 3 by max, scale 16, experts 7 silu, gated shared 14"
