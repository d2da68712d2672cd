"""The expert kernels, in triton's interpreter, against the definition in float64.

Letters: N tokens, K experts chosen for a token, E experts, M model width, I expert width.
"""

from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch import Tensor

from fuel_core.ops import cuda
from fuel_core.ops.experts import experts_reference
from fuel_core.ops.triton.experts import by_choice, experts_on_device, grouped
from fuel_core.plans.model_plan import ActivationName

pytestmark = pytest.mark.usefixtures("interpreter")

FORMS = {
    "by choice": partial(by_choice, rows=8, columns=16),
    "grouped": partial(grouped, slots=16, units=16, columns=16),
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """Widths are no multiple of a tile, so that every edge is masked."""

    tokens: int
    chosen: int
    experts: int
    activation: ActivationName = "silu"

    def arguments(self, model: int = 40, inner: int = 24) -> tuple[Tensor, ...]:
        draw = torch.Generator().manual_seed(self.tokens)
        x = torch.randn(self.tokens, model, generator=draw)
        gate_up = torch.randn(self.experts, 2 * inner, model, generator=draw) / 5
        down = torch.randn(self.experts, model, inner, generator=draw) / 5
        orders = [torch.randperm(self.experts, generator=draw) for _ in range(self.tokens)]
        ids = torch.stack(orders)[:, : self.chosen].contiguous()
        return x, gate_up, down, ids, torch.rand(self.tokens, self.chosen, generator=draw)


CASES = {
    "one token": Case(tokens=1, chosen=4, experts=7),
    "few tokens": Case(tokens=3, chosen=2, experts=5, activation="gelu"),
    "all experts": Case(tokens=3, chosen=3, experts=3, activation="relu"),
    "one of many": Case(tokens=5, chosen=1, experts=30, activation="gelu_new"),
    "blocks that overflow": Case(tokens=35, chosen=2, experts=3, activation="gelu_pytorch_tanh"),
}


def wanted(arguments: tuple[Tensor, ...], activation: ActivationName) -> Tensor:
    return experts_reference(*(x.double() if x.is_floating_point() else x for x in arguments), activation)


def error(found: Tensor, exact: Tensor) -> float:
    """Relative to the largest value; NaN is no small number."""
    worst = ((found.double() - exact).abs().max() / exact.abs().max()).item()
    return worst if worst == worst else torch.inf


@pytest.mark.parametrize(
    ("name", "form"),
    [(name, form) for name in CASES for form in FORMS if CASES[name].tokens <= 5 or form == "grouped"],
)
def test_kernels_equal_the_definition(name: str, form: str) -> None:
    arguments, activation = CASES[name].arguments(), CASES[name].activation
    assert error(FORMS[form](*arguments, activation), wanted(arguments, activation)) < 1e-5


@pytest.mark.parametrize("form", FORMS)
def test_an_expert_that_nobody_chose_is_not_read(form: str) -> None:
    x, gate_up, down, ids, weights = CASES["one of many"].arguments()
    exact = wanted((x, gate_up, down, ids, weights), "silu")
    unchosen = torch.ones(gate_up.shape[0], dtype=torch.bool).index_fill(0, ids.flatten(), False)
    assert unchosen.any()
    gate_up[unchosen], down[unchosen] = torch.nan, torch.nan
    assert error(FORMS[form](x, gate_up, down, ids, weights, "silu"), exact) < 1e-5


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bfloat16_weights(dtype: torch.dtype, form: str) -> None:
    """Three roundings of bfloat16 at most, of the hidden units and of the output; none in float32."""
    x, gate_up, down, *choices = CASES["few tokens"].arguments()
    arguments = (x.to(dtype), gate_up.bfloat16(), down.bfloat16(), *choices)
    found = FORMS[form](*arguments, "silu")
    assert found.dtype is dtype
    assert error(found, wanted(arguments, "silu")) < (1e-5 if dtype is torch.float32 else 3 * 2**-9)


@pytest.mark.parametrize("form", FORMS)
def test_the_same_bits_every_time_whatever_the_other_tokens_chose(form: str) -> None:
    x, gate_up, down, ids, weights = Case(tokens=3, chosen=2, experts=6).arguments()
    first = FORMS[form](x, gate_up, down, ids, weights, "silu")
    assert torch.equal(FORMS[form](x, gate_up, down, ids, weights, "silu"), first)
    ids, x = ids.clone(), x.clone()
    ids[1:], x[1:] = (ids[1:] + 1) % 6, 2.0
    assert torch.equal(FORMS[form](x, gate_up, down, ids, weights, "silu")[0], first[0])


@pytest.mark.parametrize("tokens", [1, 17])
def test_either_side_of_the_choice_between_the_forms(tokens: int) -> None:
    """By the entry that CUDA takes, with its own tiles, for weights and ids that are slices."""
    x, gate_up, down, ids, weights = Case(tokens=tokens, chosen=2, experts=4).arguments()
    exact = wanted((x, gate_up, down, ids, weights), "silu")
    assert error(experts_on_device(x, gate_up, down, ids, weights, "silu"), exact) < 1e-5
    ids_as_slice = torch.cat((ids, ids), dim=1)[:, :2]
    assert error(cuda.experts_cuda(x, gate_up, down, ids_as_slice, weights, "silu"), exact) < 1e-5


def test_float64_takes_the_definition() -> None:
    x, gate_up, down, ids, weights = CASES["few tokens"].arguments()
    wide = (x.double(), gate_up.double(), down.double(), ids, weights.double())
    assert error(cuda.experts_cuda(*wide, "silu"), wanted(wide, "silu")) < 1e-12
