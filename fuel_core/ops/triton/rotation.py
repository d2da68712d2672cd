"""The rotation of RoPE as one Triton kernel.

Letters: B rows, T new tokens, H heads, D head dim, R rotary width.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from fuel_core.ops.triton.tiling import row_warps


@triton.jit
def rotate_kernel(
    X,
    COS,
    SIN,
    OUT,
    x_stride_token,
    x_stride_head,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    PAIRS: tl.constexpr,
    TILE: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):
    """One head of one token: each dimension from itself and the one that it is paired with."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    dims = tl.arange(0, TILE)
    there = dims < DIM
    turned = dims < 2 * PAIRS
    if INTERLEAVED:
        pairs, is_first, partner = dims // 2, dims % 2 == 0, dims ^ 1
    else:
        is_first = dims < PAIRS
        pairs = tl.where(is_first, dims, dims - PAIRS)
        partner = tl.where(is_first, dims + PAIRS, dims - PAIRS)
    head_row = X + token * x_stride_token + head * x_stride_head
    x = tl.load(head_row + dims, mask=there, other=0.0).to(tl.float32)
    other = tl.load(head_row + partner, mask=turned, other=0.0).to(tl.float32)
    cos = tl.load(COS + token * PAIRS + pairs, mask=turned, other=1.0)
    sin = tl.load(SIN + token * PAIRS + pairs, mask=turned, other=0.0)
    y = x * cos + tl.where(is_first, -other, other) * sin
    tl.store(OUT + (token * HEADS + head) * DIM + dims, y, mask=there)


def rotate_heads(x_BTHD: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool) -> Tensor:
    """Rotate the first R dimensions of each head, computed in float32; the others pass.

    Args:
        x_BTHD: dense in its last dimension.
        cos, sin: ``[B, T, 1, R/2]``, float32, contiguous.
    """
    assert 2 * cos.shape[-1] <= x_BTHD.shape[-1], "more dimensions are to turn than a head has"
    x_NHD = x_BTHD.flatten(0, 1)
    tokens, heads, dim = x_NHD.shape
    out = torch.empty(x_BTHD.shape, dtype=x_BTHD.dtype, device=x_BTHD.device)
    rotate_kernel[(tokens, heads)](
        x_NHD,
        cos,
        sin,
        out,
        x_NHD.stride(0),
        x_NHD.stride(1),
        HEADS=heads,
        DIM=dim,
        PAIRS=cos.shape[-1],
        TILE=triton.next_power_of_2(dim),
        INTERLEAVED=interleaved,
        num_warps=row_warps(dim),
    )
    return out
