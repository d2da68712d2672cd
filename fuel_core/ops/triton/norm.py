"""Root-mean-square normalisation as one Triton kernel, alone or of a sum.

Letters: N tokens, H heads, W normalised width.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from fuel_core.ops.triton.tiling import row_warps


@triton.jit
def rms_norm_kernel(
    X,
    Y,
    WEIGHT,
    SUM,
    OUT,
    x_stride_token,
    x_stride_head,
    y_stride_token,
    eps,
    WIDTH: tl.constexpr,
    TILE: tl.constexpr,
    ADDS: tl.constexpr,
):
    """One head of one token; with ADDS the sum is stored too, and is what is normalised."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    columns = tl.arange(0, TILE)
    there = columns < WIDTH
    x = tl.load(X + token * x_stride_token + head * x_stride_head + columns, mask=there, other=0.0)
    row = (token * tl.num_programs(1) + head) * WIDTH + columns
    if ADDS:
        y = tl.load(Y + token * y_stride_token + columns, mask=there, other=0.0)
        # rounded as it is stored: a sum that only the norm saw would be another one
        x = (x.to(tl.float32) + y.to(tl.float32)).to(SUM.dtype.element_ty)
        tl.store(SUM + row, x, mask=there)
    wide = x.to(tl.float32)
    shrink = tl.rsqrt(tl.sum(wide * wide, 0) / WIDTH + eps)
    weight = tl.load(WEIGHT + columns, mask=there, other=0.0).to(tl.float32)
    tl.store(OUT + row, (wide * shrink * weight).to(OUT.dtype.element_ty), mask=there)


def rms_norm(x: Tensor, weight_W: Tensor, eps: float) -> Tensor:
    """``x / rms(x) * weight`` over the last dimension, which is dense; computed in float32.

    Args:
        x: ``[N, W]``, ``[B, T, W]`` or ``[B, T, H, W]``; each may be a slice of a wider projection.
    """
    x_NHW = x.flatten(0, -3) if x.dim() > 3 else x.flatten(0, -2)[:, None]
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch(x_NHW, None, weight_W, None, out, eps)
    return out


def add_rms_norm(x: Tensor, y: Tensor, weight_W: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """``x + y`` of one shape and dtype, rounded to it, and :func:`rms_norm` of it."""
    total, out = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for _ in range(2))
    _launch(x.flatten(0, -2)[:, None], y.flatten(0, -2), weight_W, total, out, eps)
    return total, out


def _launch(
    x_NHW: Tensor, y_NW: Tensor | None, weight_W: Tensor, total: Tensor | None, out: Tensor, eps: float
) -> None:
    tokens, heads, width = x_NHW.shape
    rms_norm_kernel[(tokens, heads)](
        x_NHW,
        y_NW,
        weight_W,
        total,
        out,
        x_NHW.stride(0),
        x_NHW.stride(1),
        0 if y_NW is None else y_NW.stride(0),
        eps,
        WIDTH=width,
        TILE=triton.next_power_of_2(width),
        ADDS=y_NW is not None,
        num_warps=row_warps(width),
    )
