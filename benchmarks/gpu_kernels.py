"""The operations of a device against their definitions in float64 on the same device.

Letters: B rows, H query heads, G key/value heads, D head dim, C capacity, X latent and rotary width.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import get_args

import torch
from gpu_check import Check, Findings, relative_gap
from torch import Tensor

from fuel_core.ops import add_rms_norm, apply_experts, attend, gated, rms_norm
from fuel_core.ops.cached import attend_reference
from fuel_core.ops.experts import experts_reference
from fuel_core.ops.kernels import fuses
from fuel_core.ops.latent import latent_reference
from fuel_core.ops.routing import route
from fuel_core.plans import UNBOUNDED, ActivationName, RouterPlan, visible
from fuel_core.plans.moe_plan import Scoring
from fuel_core.plans.rope import Layout
from fuel_core.rotary import RopeRows

C = 1024

HELD = (0, 63, 1000)
"""Tokens that three rows hold: none, up to the edge of a block, many blocks."""

BOUNDS: Mapping[torch.dtype, float] = {torch.float32: 2e-5, torch.bfloat16: 2**-7, torch.float16: 2**-10}
"""Relative to the largest value. Float32: products of three of tf32. Half precision: two roundings, of the
softmax's weights and of the output."""

_MORE_ROUNDINGS = 2
"""Times these bounds for experts, which also round their projections and hidden units."""


@dataclass(frozen=True, kw_only=True)
class AttendCase:
    """A geometry of cached attention."""

    groups: int = 2
    members: int = 4
    dim: int = 128
    window: int = UNBOUNDED
    softcap: float | None = None


ATTEND: Mapping[torch.dtype, Mapping[str, AttendCase]] = {
    torch.bfloat16: {
        "dim 64, 7 heads a group": AttendCase(dim=64, members=7),
        "dim 80": AttendCase(dim=80),
        "dim 96": AttendCase(dim=96),
        "dim 128": AttendCase(),
        "dim 256": AttendCase(dim=256),
        "multi-head": AttendCase(groups=8, members=1),
        "one group of 32": AttendCase(groups=1, members=32),
        "window of 100": AttendCase(window=100),
        "window of 1": AttendCase(window=1),
        "soft cap": AttendCase(softcap=2.0),
        "soft cap and window": AttendCase(softcap=2.0, window=100),
    },
    torch.float16: {"dim 64": AttendCase(dim=64), "dim 128": AttendCase()},
    torch.float32: {
        "dim 8": AttendCase(dim=8, members=3),
        "dim 64": AttendCase(dim=64),
        "dim 128": AttendCase(),
        "dim 256": AttendCase(dim=256),
        "soft cap and window": AttendCase(softcap=2.0, window=100),
    },
}

LATENT = {
    torch.bfloat16: {"16 heads": (16, 512, 64), "128 heads": (128, 512, 64)},
    torch.float16: {"16 heads": (16, 512, 64)},
    torch.float32: {"16 heads": (16, 512, 64), "rank 24": (4, 24, 8)},
}
"""Heads, latent rank, rotary width."""

EXPERTS: Mapping[str, tuple[int, ActivationName]] = {
    "1 token": (1, "silu"),
    "5 tokens": (5, "gelu"),
    "40 tokens": (40, "silu"),
}


def kernel_checks(device: torch.device) -> list[Check]:
    """One check an operation and dtype."""
    return [
        *(
            Check(
                name=f"attend of one token equals its definition, {_name(dtype)}",
                run=partial(attend_one, device, dtype),
                expected_s=2.0 * len(cases),
            )
            for dtype, cases in ATTEND.items()
        ),
        Check(
            name="attend of several tokens equals its definition, float32 and bfloat16",
            run=partial(attend_several, device),
            expected_s=2.0,
        ),
        *(
            Check(
                name=f"attend_latent equals its definition, {_name(dtype)}",
                run=partial(attend_latent, device, dtype),
                expected_s=3.0 * len(cases),
            )
            for dtype, cases in LATENT.items()
        ),
        *(
            Check(
                name=f"experts equals its definition, {_name(dtype)}",
                run=partial(experts, device, dtype),
                expected_s=6.0,
            )
            for dtype in (torch.float32, torch.bfloat16)
        ),
        *(
            Check(
                name=f"fused norms, routing, gate and rotation equal their definitions, {_name(dtype)}",
                run=partial(fused, device, dtype),
                expected_s=2.0,
            )
            for dtype in BOUNDS
        ),
    ]


def attend_one(device: torch.device, dtype: torch.dtype, findings: Findings) -> None:
    for name, case in ATTEND[dtype].items():
        noise = Noise(device, dtype)
        batch, rows = len(HELD), len(HELD) + 2
        pools = noise(2, rows, case.groups, C, case.dim)
        order = list(range(rows))[::-1][:batch]
        for row, held in zip(order, HELD, strict=True):
            pools[:, row, :, held:] = torch.nan  # what was never written must not matter
        q = noise(batch, 1, case.groups * case.members, case.dim)
        k_new, v_new = noise(2, batch, 1, case.groups, case.dim)
        rest = (
            torch.tensor(order, device=device),
            torch.tensor(HELD, device=device)[:, None],
            torch.tensor(case.window, device=device),
            None,
            2 * case.dim**-0.5,
            case.softcap,
        )
        k_pool, v_pool = pools
        k_kept, v_kept = kept = pools.double()
        found = attend(q, k_new, v_new, k_pool, v_pool, *rest)
        wanted = attend_reference(q.double(), k_new.double(), v_new.double(), k_kept, v_kept, *rest)
        findings.within(name, relative_gap(found, wanted), BOUNDS[dtype])
        same = torch.equal(pools.double().nan_to_num(7.0), kept.nan_to_num(7.0))
        findings.require(same, f"{name}: the pools hold other than the new tokens beside the old ones")


def attend_several(device: torch.device, findings: Findings) -> None:
    start, tokens, case = 63, 34, AttendCase()
    for dtype in (torch.float32, torch.bfloat16):
        for name, window, softcap in (("causal", UNBOUNDED, None), ("window of 20, soft cap", 20, 2.0)):
            noise = Noise(device, dtype)
            pools = noise(2, 2, case.groups, C, case.dim)
            q = noise(1, tokens, case.groups * case.members, case.dim)
            k_new, v_new = noise(2, 1, tokens, case.groups, case.dim)
            positions = torch.arange(start, start + tokens, device=device)
            width = torch.tensor(window, device=device)
            seen = visible(positions[:, None], torch.arange(start + tokens, device=device), width)
            rows = torch.tensor([1], device=device)
            rest = (rows, positions[None], width, seen, case.dim**-0.5, softcap)
            k_pool, v_pool = pools
            k_kept, v_kept = pools.double()
            found = attend(q, k_new, v_new, k_pool, v_pool, *rest)
            wanted = attend_reference(q.double(), k_new.double(), v_new.double(), k_kept, v_kept, *rest)
            findings.within(f"{name}, {_name(dtype)}", relative_gap(found, wanted), BOUNDS[dtype])


def attend_latent(device: torch.device, dtype: torch.dtype, findings: Findings) -> None:
    for name, (heads, rank, rotary) in LATENT[dtype].items():
        noise = Noise(device, dtype)
        width, batch, rows = rank + rotary, len(HELD), len(HELD) + 1
        pool = noise(rows, C, width)
        for row, held in enumerate(HELD):
            pool[row, held:] = torch.nan
        q, new = noise(batch, 1, heads, width), noise(batch, 1, width)
        rest = (
            torch.arange(batch, device=device),
            torch.tensor(HELD, device=device)[:, None],
            torch.tensor(UNBOUNDED, device=device),
            None,
            2 * width**-0.5,
            rank,
        )
        kept = pool.double()
        found = torch.ops.fuel.attend_latent(q, new, pool, *rest)
        wanted = latent_reference(q.double(), new.double(), kept, *rest)
        findings.within(name, relative_gap(found, wanted), BOUNDS[dtype])
        same = torch.equal(pool.double().nan_to_num(7.0), kept.nan_to_num(7.0))
        findings.require(same, f"{name}: the pool holds other than the new tokens beside the old ones")


def experts(device: torch.device, dtype: torch.dtype, findings: Findings) -> None:
    count, chosen, model, inner = 16, 4, 256, 192
    for name, (tokens, activation) in EXPERTS.items():
        noise = Noise(device, dtype)
        x, weights = noise(tokens, model), noise(tokens, chosen).float().abs()
        gate_up = noise(count, 2 * inner, model) / model**0.5
        down = noise(count, model, inner) / inner**0.5
        # one expert is nobody's choice and holds NaN: it must not be read
        ids = noise(tokens, count - 1).float().argsort(-1)[:, :chosen].contiguous()
        gate_up[-1], down[-1] = torch.nan, torch.nan
        found = apply_experts(x, gate_up, down, ids, weights, activation)
        wanted = experts_reference(
            x.double(), gate_up.double(), down.double(), ids, weights.double(), activation
        )
        findings.within(name, relative_gap(found, wanted), _MORE_ROUNDINGS * BOUNDS[dtype])


@torch.no_grad()
def fused(device: torch.device, dtype: torch.dtype, findings: Findings) -> None:
    """Float64 is never fused, so one function gives both sides."""
    noise, width = Noise(device, dtype), 896
    findings.require(device.type != "cuda" or fuses(noise(1, width)), "nothing is fused here")
    x, y, weight = noise(2, 3, width), noise(2, 3, width), noise(width).float()
    heads, angles = noise(2, 3, 9, 80)[:, :, 1:6], noise(2, 3, 1, 32).float()

    def within(name: str, found: Tensor, wanted: Tensor) -> None:
        findings.within(name, relative_gap(found, wanted), BOUNDS[dtype])

    within("norm", rms_norm(x, weight, 0.1), rms_norm(x.double(), weight.double(), 0.1))
    total, normed = add_rms_norm(x, y, weight, 0.1)
    findings.require(torch.equal(total, x + y), "a sum is stored otherwise than it is")
    within("norm of a sum", normed, rms_norm((x + y).double(), weight.double(), 0.1))
    head_weight = noise(80).float()
    within(
        "norm of heads",
        rms_norm(heads, head_weight, 0.1),
        rms_norm(heads.double(), head_weight.double(), 0.1),
    )
    logits = noise(7, 60).float()
    for scoring in get_args(Scoring):
        plan = RouterPlan(experts=60, chosen=4, scoring=scoring, normalise=True)
        (ids, weights), wanted = (route(each, None, plan) for each in (logits, logits.double()))
        findings.require(torch.equal(ids, wanted[0]), f"{scoring}: other experts are chosen")
        within(f"{scoring} routing", weights, wanted[1])
    for name in get_args(ActivationName):
        within(name, gated(x, name), gated(x.double(), name))
    for layout in get_args(Layout):
        rows = RopeRows(angles.cos(), angles.sin(), layout)
        within(layout, rows.rotate(heads), rows.rotate(heads.double()))


class Noise:
    """Normal numbers, drawn on the CPU: the same on every device."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._device, self._dtype = device, dtype
        self._draw = torch.Generator().manual_seed(0)

    def __call__(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self._draw).to(self._device, self._dtype)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
