"""The fused small kernels, in triton's interpreter, against the operations that they replace.

Letters: B rows, T tokens, H heads, D head dim, R rotary width, W width, I inner width.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

import pytest
import torch
import triton
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.interpreter import InterpretedFunction

from fuel_core import ops
from fuel_core.decode.buffers import append_inputs
from fuel_core.errors import FuelWarning
from fuel_core.ops import kernels
from fuel_core.ops.activation import activation
from fuel_core.ops.triton import gate, norm, rotation, routing
from fuel_core.ops.triton.gate import gated
from fuel_core.ops.triton.norm import add_rms_norm, rms_norm
from fuel_core.ops.triton.rotation import rotate_heads
from fuel_core.plans import RouterPlan
from fuel_core.plans.model_plan import ActivationName
from fuel_core.registry import Registry
from fuel_core.rotary import RopeRows
from fuel_core.step import Step
from fuel_core.testing import Case
from fuel_core.testing.checks import FLOAT32_RELATIVE, assert_close

pytestmark = pytest.mark.usefixtures("interpreter")

EPS = 0.3
"""Large, so that a kernel which forgets it is seen."""

ROUNDINGS = {torch.float32: 1e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}
"""Relative to each value: half of the last place, and of float32 its own order of sums."""

DTYPES = pytest.mark.parametrize("dtype", ROUNDINGS, ids=lambda dtype: str(dtype).removeprefix("torch."))


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def assert_rounded(found: Tensor, wanted: Tensor, dtype: torch.dtype) -> None:
    """``wanted`` in float64, and nothing between it and the result but a rounding."""
    assert found.dtype is dtype
    torch.testing.assert_close(found.double(), wanted, rtol=ROUNDINGS[dtype], atol=1e-6)


def normalised(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.double()
    return wide / (wide.square().mean(-1, keepdim=True) + EPS).sqrt() * weight.double()


@DTYPES
def test_rms_norm_of_hidden_states(dtype: torch.dtype) -> None:
    """A width that is no power of two; of all tokens, of one, and of rows without a token dimension."""
    weight = noise(40, seed=1)
    for x in (noise(2, 3, 40), noise(1, 1, 40), noise(5, 40)):
        found = rms_norm(x.to(dtype), weight, EPS)
        assert_rounded(found, normalised(x.to(dtype), weight), dtype)


@DTYPES
def test_rms_norm_of_heads_within_a_projection(dtype: torch.dtype) -> None:
    """Queries are a slice of what was projected: neither their tokens nor their rows are adjacent."""
    projected, weight = noise(2, 3, 8, 24).to(dtype), noise(24, seed=1).to(dtype)
    for heads in (projected[:, :, 1:6], projected[:, :1, 2:3]):
        assert_rounded(rms_norm(heads, weight, EPS), normalised(heads, weight), dtype)
    latents = projected.flatten(2)[..., 24:48]
    assert_rounded(rms_norm(latents, weight, EPS), normalised(latents, weight), dtype)


@DTYPES
def test_add_rms_norm_normalises_the_sum_that_it_stores(dtype: torch.dtype) -> None:
    """A sum rounded for the residual stream alone would let the norm see another one."""
    x, y, weight = noise(2, 3, 40).to(dtype), noise(2, 3, 50, seed=1).to(dtype)[..., :40], noise(40, seed=2)
    total, found = add_rms_norm(x, y, weight, EPS)
    assert torch.equal(total, x + y)
    assert_rounded(found, normalised(x + y, weight), dtype)


def test_a_sum_of_two_kinds_is_not_fused(fused: list[bool]) -> None:
    """A family's mixer may answer in another dtype, or with one token for all: the kernel read past it."""
    x, weight = noise(2, 3, 8).bfloat16(), noise(8, seed=1)
    with torch.no_grad():
        for y in (noise(2, 3, 8, seed=2), noise(1, 1, 8, seed=2).bfloat16()):
            total, found = ops.add_rms_norm(x, y, weight, EPS)
            assert torch.equal(total, x + y)
            assert_rounded(found, normalised(x + y, weight), total.dtype)


@DTYPES
@pytest.mark.parametrize("name", get_args(ActivationName))
def test_gated(name: ActivationName, dtype: torch.dtype) -> None:
    """More columns than a program takes, and a row that is no multiple of them."""
    gate_up = noise(2, 3, 2 * 1100).to(dtype)
    gate, up = gate_up.double().chunk(2, dim=-1)
    assert_rounded(gated(gate_up, name), activation(name)(gate) * up, dtype)


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
@pytest.mark.parametrize(("experts", "chosen"), [(64, 6), (60, 4), (5, 1), (3, 3)])
def test_route(experts: int, chosen: int, scoring: str, normalise: bool, biased: bool) -> None:
    """Numbers of experts that are no power of two, one expert, all of them; a bias that only chooses, and
    puts every score below the 0 of an expert that is not there."""
    plan = RouterPlan(experts=experts, chosen=chosen, scoring=scoring, normalise=normalise, scale=2.5)
    logits, bias = 3 * noise(7, experts), noise(experts, seed=1) - 4 if biased else None
    ids, weights = routing.route(
        logits, bias, chosen=chosen, softmax=scoring == "softmax", normalise=normalise, scale=2.5
    )
    wanted_ids, wanted = ops.routing.route(logits.double(), bias if bias is None else bias.double(), plan)
    assert ids.dtype is torch.int64
    assert torch.equal(ids, wanted_ids)
    assert_rounded(weights, wanted, torch.float32)


@DTYPES
@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("rotary", [24, 10])
def test_rotate(rotary: int, layout: str, dtype: torch.dtype) -> None:
    """Heads of which all or some dimensions turn, sliced from a projection, at positions of their own."""
    angles = torch.tensor([[3.0, 4.0], [0.0, 9.0]])[..., None, None] / torch.arange(1, rotary // 2 + 1)
    projected = noise(2, 2, 7, 24).to(dtype)
    rows = RopeRows(angles.cos(), angles.sin(), layout)
    wide = RopeRows(rows.cos.double(), rows.sin.double(), layout)
    for heads in (projected, projected[:, :, 2:5], projected[:, :, :1]):
        found = rotate_heads(heads, rows.cos, rows.sin, interleaved=layout == "interleaved")
        assert_rounded(found, wide.rotate(heads.double()), dtype)


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """The CPU fuses as CUDA does; returns the answers that it gave."""
    answers: list[bool] = []

    def fuses(x: Tensor) -> bool:
        answers.append(not torch.is_grad_enabled())
        return answers[-1]

    for module in ("ops.norm", "ops.gate", "ops.routing", "rotary"):
        monkeypatch.setattr(f"fuel_core.{module}.fuses", fuses)
    return answers


@pytest.mark.parametrize(
    ("name", "tiny"),
    [
        ("llama", "plain"),
        ("qwen3", "plain"),
        ("qwen3_moe", "plain"),
        ("phi3", "longrope-partial"),
        ("deepseek_v2", "plain-q"),
        ("phi", "qk-norm"),
    ],
)
def test_a_model_of_fused_kernels_decodes_as_its_differentiable_forward(
    name: str, tiny: str, fused: list[bool]
) -> None:
    case = Case.build(Registry.discover().family(name), tiny, dtype=torch.float32)
    tokens = case.token_ids(seed=1, count=12)
    wanted = case.decoder(torch.tensor([tokens]))[0]
    assert not any(fused), "vacuous: both sides are fused"
    found = case.decode(case.session(), tokens, prefilled=8)
    assert any(fused), "vacuous: neither side is"
    assert_close(found, wanted, FLOAT32_RELATIVE * float(wanted.abs().max()), name)


class Launches(TorchDispatchMode):
    """Counts what would be launched on a GPU: operations that compute, and kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.count += not (
            func.is_view or func.overloadpacket.__name__ in ("empty", "empty_like", "_unsafe_view")
        )
        return func(*args, **(kwargs or {}))


def test_a_layer_launches_five_operations_beside_products_and_attention(
    fused: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Norm, rotation, norm of the residual sum, gate and the second sum. Unfused, a rotation alone is 8."""
    case = Case.build(Registry.discover().family("llama"), "plain", dtype=torch.bfloat16)
    pool, launches = case.pool(), Launches()
    inputs = append_inputs([[1]], [pool.acquire()], pool)
    step = Step.cached(case.plan, case.decoder.tables, inputs, pool.layers, 0)
    x = case.decoder.embeddings(inputs.token_ids_BT)
    for module in (norm, gate, rotation):
        for name, kernel in vars(module).items():
            if isinstance(kernel, InterpretedFunction) and name.endswith("_kernel"):
                monkeypatch.setattr(module, name, CountedKernel(launches))
    with torch.no_grad(), launches:
        case.decoder.layers[0](x, step.layer(0))
    products_and_attention = 5
    assert launches.count - products_and_attention == 5


@dataclass
class CountedKernel:
    """In place of a kernel: counts its launches and computes nothing."""

    launches: Launches

    def __getitem__(self, grid: object) -> Callable[..., None]:
        def launch(*arguments: object, **named: object) -> None:
            self.launches.count += 1

        return launch


def test_when_small_operations_are_fused() -> None:
    def on(device: str, *strides: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.empty_strided((4, 2), strides, dtype=dtype, device=device)

    with FakeTensorMode(), torch.no_grad():
        assert kernels.fuses(on("cuda", 2, 1))
        assert kernels.fuses(on("cuda", 7, 1)), "a slice"
        assert not kernels.fuses(on("cuda", 1, 4)), "a transpose"
        assert not kernels.fuses(on("cuda", 2, 1, dtype=torch.float64))
        assert not kernels.fuses(on("cpu", 2, 1))
        with torch.enable_grad():
            assert not kernels.fuses(on("cuda", 2, 1))


def test_the_compiler_fuses_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.compiler.is_compiling", lambda: True)
    with FakeTensorMode(), torch.no_grad():
        assert not kernels.fuses(torch.empty(4, 8, device="cuda"))


def test_a_triton_that_cannot_run_is_said_once_and_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Installed without a C compiler it fails at the first launch: every call on CUDA raised."""
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    kernels.triton_runs.cache_clear()
    with FakeTensorMode(), torch.no_grad():
        x = torch.empty(4, 8, device="cuda")
        with pytest.warns(FuelWarning, match="Triton is installed and cannot run: .*C compiler"):
            assert not kernels.fuses(x)
        assert not kernels.fuses(x)
    kernels.triton_runs.cache_clear()
