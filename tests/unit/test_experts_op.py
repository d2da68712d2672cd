"""``fuel::experts``: both kernels, forward and backward, against a formula over all experts."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fuel_core.ops import apply_experts
from fuel_core.ops.activation import activation
from fuel_core.ops.experts import (
    FEW_TOKENS,
    experts_backward_cpu,
    experts_backward_reference,
    experts_cpu,
    experts_reference,
)
from fuel_core.testing.dispatch import HOST_READ, dispatched

EXPERTS, CHOSEN, HIDDEN, WIDTH = 12, 3, 20, 28
TOKENS = [1, 3, FEW_TOKENS, FEW_TOKENS + 1, 40]
KERNELS = [pytest.param(experts_cpu, id="cpu"), pytest.param(experts_reference, id="reference")]
BACKWARD_KERNELS = [
    pytest.param(experts_backward_cpu, id="cpu"),
    pytest.param(experts_backward_reference, id="reference"),
]

Inputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
"""x, gate_up, down, ids, weights."""


def inputs(tokens: int, dtype: torch.dtype = torch.float64, *, experts: int = EXPERTS) -> Inputs:
    draw = torch.Generator().manual_seed(tokens)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64).to(dtype)

    ids = torch.rand(tokens, experts, generator=draw).topk(CHOSEN).indices
    weights = torch.rand(tokens, CHOSEN, generator=draw).to(torch.promote_types(dtype, torch.float32))
    gate_up, down = normal(EXPERTS, 2 * WIDTH, HIDDEN), normal(EXPERTS, HIDDEN, WIDTH)
    return normal(tokens, HIDDEN), gate_up, down, ids, weights


def formula(
    x: Tensor,
    gate_up: Tensor,
    down: Tensor,
    ids: Tensor,
    weights: Tensor,
    function: Callable[[Tensor], Tensor] = F.silu,
) -> Tensor:
    """Every expert for every token, weighed by a matrix that is zero for those not chosen."""
    gate, up = torch.einsum("nm,eom->neo", x, gate_up).chunk(2, dim=-1)
    y_NEM = torch.einsum("nei,emi->nem", function(gate) * up, down)
    share_NE = (F.one_hot(ids, EXPERTS) * weights[..., None]).sum(1)
    return torch.einsum("nem,ne->nm", y_NEM, share_NE)


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_the_chosen_experts_are_summed_by_weight(kernel: Callable[..., Tensor], tokens: int) -> None:
    given = inputs(tokens)
    torch.testing.assert_close(kernel(*given, "silu"), formula(*given), atol=1e-10, rtol=0)


@pytest.mark.parametrize("name", ["silu", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu"])
@pytest.mark.parametrize("tokens", [3, 40])
def test_gradients_are_those_of_the_formula(name: str, tokens: int) -> None:
    """By every activation: its derivative is written out, not recorded."""
    x, gate_up, down, ids, weights = inputs(tokens)
    leaves = [tensor.requires_grad_() for tensor in (x, gate_up, down, weights)]
    out = apply_experts(x, gate_up, down, ids, weights, name)
    wanted = formula(x, gate_up, down, ids, weights, activation(name))
    upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=out.dtype)
    found = torch.autograd.grad(out, leaves, upstream)
    expected = torch.autograd.grad(wanted, leaves, upstream)
    for gradient, right in zip(found, expected, strict=True):
        torch.testing.assert_close(gradient, right, atol=1e-10, rtol=0)


@pytest.mark.parametrize("tokens", TOKENS)
def test_both_kernels_of_the_backward_agree(tokens: int) -> None:
    given = inputs(tokens)
    grad = torch.randn_like(given[0])
    found = experts_backward_cpu(grad, *given, "silu")
    for gradient, right in zip(found, experts_backward_reference(grad, *given, "silu"), strict=True):
        torch.testing.assert_close(gradient, right, atol=1e-10, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens", [1, 40])
def test_torch_finds_the_registration_sound(dtype: torch.dtype, tokens: int) -> None:
    x, gate_up, down, ids, weights = inputs(tokens, dtype)
    leaves = [tensor.requires_grad_() for tensor in (x, gate_up, down, weights)]
    torch.library.opcheck(torch.ops.fuel.experts, (*leaves[:3], ids, leaves[3], "silu"))
    grad = torch.ones_like(x)
    given = (grad, *(tensor.detach() for tensor in (x, gate_up, down, ids, weights)), "silu")
    torch.library.opcheck(torch.ops.fuel.experts_backward, given)


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_experts_that_nobody_chose_are_not_touched(kernel: Callable[..., Tensor], tokens: int) -> None:
    """A product with a weight of zero would let the NaN of an expert through."""
    x, gate_up, down, ids, weights = inputs(tokens, experts=EXPERTS - 2)
    right = formula(x, gate_up, down, ids, weights)
    gate_up[EXPERTS - 2 :] = down[EXPERTS - 2 :] = torch.nan
    found = kernel(x, gate_up, down, ids, weights, "silu")
    torch.testing.assert_close(found, right, atol=1e-10, rtol=0)


@pytest.mark.parametrize("tokens", [3, 40])
@pytest.mark.parametrize("kernel", BACKWARD_KERNELS)
def test_experts_that_nobody_chose_get_no_gradient(
    kernel: Callable[..., tuple[Tensor, ...]], tokens: int
) -> None:
    x, gate_up, down, ids, weights = inputs(tokens, experts=EXPERTS - 2)
    gate_up[EXPERTS - 2 :] = down[EXPERTS - 2 :] = torch.nan
    gradients = kernel(torch.ones_like(x), x, gate_up, down, ids, weights, "silu")
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert not gradients[1][EXPERTS - 2 :].any()
    assert not gradients[2][EXPERTS - 2 :].any()


@pytest.mark.parametrize("tokens", [2, FEW_TOKENS])
def test_a_row_is_the_same_bits_whatever_its_neighbours_choose(tokens: int) -> None:
    """Evaluated in one product with a neighbour of the same expert, a row rounded differently."""
    x, gate_up, down, ids, weights = inputs(tokens, torch.float32)
    alone = apply_experts(x, gate_up, down, ids, weights, "silu")[0]
    for neighbours in (ids[:1].expand(tokens, -1), (ids[:1] + 1).expand(tokens, -1) % EXPERTS):
        others = torch.cat((ids[:1], neighbours[1:]))
        beside = apply_experts(torch.cat((x[:1], 9 * x[1:])), gate_up, down, others, weights, "silu")
        assert torch.equal(beside[0], alone)


def test_a_row_among_many_is_close_to_itself_alone() -> None:
    x, gate_up, down, ids, weights = inputs(40, torch.float32)
    together = apply_experts(x, gate_up, down, ids, weights, "silu")
    for row in range(40):
        here = slice(row, row + 1)
        alone = apply_experts(x[here], gate_up, down, ids[here], weights[here], "silu")
        largest = float(alone.abs().max())
        torch.testing.assert_close(together[here], alone, atol=1e-5 * largest, rtol=0)


@pytest.mark.parametrize("tokens", [1, 3, 40])
@pytest.mark.parametrize("kernel", KERNELS)
def test_weights_may_be_narrower_than_activations(kernel: Callable[..., Tensor], tokens: int) -> None:
    x, gate_up, down, ids, weights = inputs(tokens, torch.float32)
    narrow = gate_up.bfloat16(), down.bfloat16()
    found = kernel(x, *narrow, ids, weights, "silu")
    right = formula(x.double(), *(matrix.double() for matrix in narrow), ids, weights.double())
    assert found.dtype is torch.float32
    torch.testing.assert_close(found.double(), right, atol=1e-6 * float(right.abs().max()), rtol=0)


def test_half_precision_is_summed_in_float32() -> None:
    """Summed in bfloat16, 512 weights of 1/512 lose what one of them adds."""
    ids = torch.arange(512)[None]
    gate_up, down = torch.zeros(512, 2, 1), torch.zeros(512, 1, 1)
    gate_up[:] = 1.0
    down[:] = 1.0
    x, weights = torch.ones(1, 1, dtype=torch.bfloat16), torch.full((1, 512), 1 / 512)
    for kernel in (experts_cpu, experts_reference):
        found = kernel(x, gate_up.bfloat16(), down.bfloat16(), ids, weights, "relu")
        assert found.dtype is torch.bfloat16
        assert found.item() == 1.0


@pytest.mark.parametrize("tokens", [1, 4, 40])
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
def test_no_copy_of_an_expert_is_made(tokens: int, stored: torch.dtype) -> None:
    """Gathering the chosen experts' matrices would move each byte three times."""
    hidden, width = 512, 2048
    x, weights = torch.zeros(tokens, hidden, dtype=stored), torch.ones(tokens, 2)
    gate_up = torch.zeros(4, 2 * width, hidden, dtype=stored)
    down = torch.zeros(4, hidden, width, dtype=stored)
    ids = torch.arange(2).expand(tokens, 2)
    with torch.profiler.profile(profile_memory=True) as profile:
        apply_experts(x, gate_up, down, ids, weights, "silu")
    allocated = max(event.self_cpu_memory_usage for event in profile.events())
    assert 0 < allocated < down[0].nbytes / 2


def test_a_step_sees_one_operation_and_the_reference_reads_nothing_on_the_host() -> None:
    given = inputs(3)
    assert dispatched(lambda: apply_experts(*given, "silu")) == ["fuel.experts.default"]
    assert HOST_READ not in dispatched(lambda: experts_reference(*given, "silu"))
    backward = (torch.ones_like(given[0]), *given, "silu")
    assert HOST_READ not in dispatched(lambda: experts_backward_reference(*backward))
    assert HOST_READ in dispatched(lambda: experts_reference(*given, "silu")[0, 0].item()), "non-vacuity"


def test_no_token_is_no_work() -> None:
    x, gate_up, down, ids, weights = inputs(1)
    assert apply_experts(x[:0], gate_up, down, ids[:0], weights[:0], "silu").shape == (0, HIDDEN)
