"""What split kernels share: which keys a split reads, the running softmax, and how splits become one.

A program sees one row of the batch, a tile of query heads and one split. It reads the row's position
and window from device memory, so the grid is sized by the capacity and the cost follows the length.

Letters: B rows, H query heads, D head dim. Scores are in powers of two: ``log2(e)`` is in their scale.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from fuel_core.ops.triton.tiling import SplitTiling, padded

_COMBINED_AT_ONCE, _COMBINED_DIMS = 16, 128
"""Splits that a program reads at a time, and dims that it combines: a latent of 512 takes four a head."""


@triton.jit
def lowest_visible(position, window):
    """``max(0, first_visible(position, window))``, on the device."""
    return tl.maximum(position - window + 1, 0)


@triton.jit
def tokens_per_split(position, window, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    """Equal shares of the stored keys, in whole blocks."""
    stored = position - lowest_visible(position, window)
    return tl.maximum(tl.cdiv(tl.cdiv(stored, SPLITS), BLOCK), 1) * BLOCK


@triton.jit
def live_splits(position, window, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    """How many splits have something to say. The first always has: the new token is its own."""
    stored = position - lowest_visible(position, window)
    return tl.maximum(tl.cdiv(stored, tokens_per_split(position, window, SPLITS, BLOCK)), 1)


@triton.jit
def split_range(position, window, split, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    """The stored keys ``begin..end - 1`` of a split. The new token, at ``position``, is not stored yet."""
    share = tokens_per_split(position, window, SPLITS, BLOCK)
    begin = lowest_visible(position, window) + split * share
    return begin.to(tl.int32), tl.minimum(begin + share, position).to(tl.int32)


@triton.jit
def capped(products, scale, softcap, CAPPED: tl.constexpr):
    """Scores from products of queries and keys; ``tanh`` is spelt out for want of one everywhere."""
    log2e: tl.constexpr = 1.4426950408889634
    if CAPPED:
        grown = tl.exp2(tl.abs(products * (scale / softcap)) * (-2.0 * log2e))
        magnitude = (1.0 - grown) / (1.0 + grown)
        scores = tl.where(products * scale < 0, -magnitude, magnitude) * (softcap * log2e)
    else:
        scores = products * (scale * log2e)
    return scores


@triton.jit
def fold(scores, values, peak, total, sums):
    """Take a block of scores and values into the running softmax of each query head."""
    higher = tl.maximum(peak, tl.max(scores, 1))
    shrink = tl.exp2(peak - higher)
    weights = tl.exp2(scores - higher[:, None])
    added = tl.dot(weights.to(values.dtype), values, input_precision="tf32x3")
    return higher, total * shrink + tl.sum(weights, 1), sums * shrink[:, None] + added


@triton.jit
def store_part(
    PARTS, LOGS, part, heads, dims, there, peak, total, sums, SPLITS: tl.constexpr, DIM: tl.constexpr
):
    """Leave a split's mean of values and the logarithm of its weight for the combination."""
    places = part + heads * SPLITS
    tl.store(LOGS + places, peak + tl.log2(total), mask=there)
    kept = there[:, None] & (dims < DIM)[None, :]
    tl.store(PARTS + places[:, None] * DIM + dims[None, :], sums / total[:, None], mask=kept)


@triton.jit(do_not_specialize_on_alignment=["POSITIONS"])
def combine_kernel(
    PARTS,
    LOGS,
    POSITIONS,
    WINDOW,
    OUT,
    position_stride,
    out_stride_row,
    out_stride_head,
    DIM: tl.constexpr,
    DIM_TILE: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLITS: tl.constexpr,
    SPLITS_TILE: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """Some dims of one head of one row: the weighted mean of the splits that are live, in their order."""
    head, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    position = tl.load(POSITIONS + row * position_stride)
    live = live_splits(position, tl.load(WINDOW), SPLITS, BLOCK).to(tl.int32)
    first = (row * tl.num_programs(0) + head) * SPLITS

    splits, dims = tl.arange(0, SPLITS_TILE), tl.program_id(2) * DIM_TILE + tl.arange(0, DIM_TILE)
    logs = tl.load(LOGS + first + splits, mask=splits < live, other=-float("inf"))
    peak = tl.max(logs, 0)
    total = tl.sum(tl.exp2(logs - peak), 0)
    sums = tl.zeros([DIM_TILE], tl.float32)
    for begin in range(0, live, AT_ONCE):
        some = begin + tl.arange(0, AT_ONCE)
        weights = tl.exp2(tl.load(LOGS + first + some, mask=some < live, other=-float("inf")) - peak)
        held = (some < live)[:, None] & (dims < DIM)[None, :]
        parts = tl.load(PARTS + (first + some)[:, None] * DIM + dims[None, :], mask=held, other=0.0)
        sums += tl.sum(weights[:, None] * parts, 0)
    out = OUT + row * out_stride_row + head * out_stride_head + dims
    tl.store(out, (sums / total).to(OUT.dtype.element_ty), mask=dims < DIM)


class Parts:
    """What the splits of one call leave behind: float32, of use until they are combined.

    Attributes:
        means: ``[B, H, splits, D]``, each split's mean of the values that it saw.
        logs: ``[B, H, splits]``, log2 of the weight of each.
    """

    def __init__(self, batch: int, heads: int, dim: int, tiling: SplitTiling, device: torch.device) -> None:
        self.tiling = tiling
        self.means = torch.empty(batch, heads, tiling.splits, dim, dtype=torch.float32, device=device)
        self.logs = torch.empty(batch, heads, tiling.splits, dtype=torch.float32, device=device)

    def combine(self, positions_BT: Tensor, window: Tensor, out_BTHD: Tensor) -> None:
        """Write the attention of the only token of each row."""
        batch, heads, splits, dim = self.means.shape
        tile = min(padded(dim), _COMBINED_DIMS)
        combine_kernel[(heads, batch, triton.cdiv(dim, tile))](
            self.means,
            self.logs,
            positions_BT,
            window,
            out_BTHD,
            positions_BT.stride(0),
            out_BTHD.stride(0),
            out_BTHD.stride(2),
            DIM=dim,
            DIM_TILE=tile,
            BLOCK=self.tiling.block_tokens,
            SPLITS=splits,
            SPLITS_TILE=padded(splits),
            AT_ONCE=_COMBINED_AT_ONCE,
            num_warps=4,
        )
