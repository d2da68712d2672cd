"""The gate of a gated feed-forward block as one Triton kernel.

Letters: N tokens, I inner width.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from fuel_core.ops.triton.activation import activated
from fuel_core.plans.model_plan import ActivationName

_COLUMNS = 1024


@triton.jit
def gate_kernel(GATE_UP, OUT, stride, INNER: tl.constexpr, COLUMNS: tl.constexpr, NAME: tl.constexpr):
    """Some columns of one token."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    there = columns < INNER
    row = GATE_UP + token * stride + columns
    gate = tl.load(row, mask=there, other=0.0).to(tl.float32)
    up = tl.load(row + INNER, mask=there, other=0.0).to(tl.float32)
    tl.store(OUT + token * INNER + columns, activated(gate, NAME) * up, mask=there)


def gated(gate_up: Tensor, activation: ActivationName) -> Tensor:
    """``activation(gate) * up`` of ``[..., 2I]``, the gate's columns first; computed in float32."""
    rows = gate_up.flatten(0, -2)
    tokens, inner = rows.shape[0], rows.shape[1] // 2
    out = torch.empty(*gate_up.shape[:-1], inner, dtype=gate_up.dtype, device=gate_up.device)
    gate_kernel[(tokens, triton.cdiv(inner, _COLUMNS))](
        rows, out, rows.stride(0), INNER=inner, COLUMNS=_COLUMNS, NAME=activation, num_warps=4
    )
    return out
