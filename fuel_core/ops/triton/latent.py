"""``fuel::attend_latent`` of one token a row, as a Triton kernel: multi-query attention over latents.

All query heads share one key, the whole cached vector, and one value, its first K columns: a block is
read once and serves as both.

Letters: B rows, H query heads, K latent rank, R rotary width, X = K + R, C capacity. The pool is
``[rows, C, X]``.
"""

import triton
import triton.language as tl
from torch import Tensor

from fuel_core.ops.triton.split import Parts, capped, fold, split_range, store_part
from fuel_core.ops.triton.tiling import SplitTiling, padded


@triton.jit(do_not_specialize_on_alignment=["POSITIONS"])
def attend_latent_kernel(
    Q,
    NEW,
    POOL,
    ROWS,
    POSITIONS,
    WINDOW,
    PARTS,
    LOGS,
    position_stride,
    q_stride_row,
    q_stride_head,
    new_stride_row,
    pool_stride_row,
    scale,
    HEADS: tl.constexpr,
    RANK: tl.constexpr,
    RANK_TILE: tl.constexpr,
    ROTARY: tl.constexpr,
    ROTARY_TILE: tl.constexpr,
    HEAD_ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """One split of one tile of query heads; the first split also stores the new token."""
    split, tile, row = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    position = tl.load(POSITIONS + row * position_stride)
    begin, end = split_range(position, tl.load(WINDOW), split, SPLITS, BLOCK)
    if (split > 0) & (begin >= end):
        return

    width: tl.constexpr = RANK + ROTARY
    heads = tile * HEAD_ROWS + tl.arange(0, HEAD_ROWS)
    there = heads < HEADS
    ranks, turns = tl.arange(0, RANK_TILE), tl.arange(0, ROTARY_TILE)
    in_rank, in_rotary = ranks < RANK, turns < ROTARY
    queries = Q + row * q_stride_row + heads[:, None] * q_stride_head
    q_latent = tl.load(queries + ranks[None, :], mask=there[:, None] & in_rank[None, :], other=0.0)
    q_pe = tl.load(queries + RANK + turns[None, :], mask=there[:, None] & in_rotary[None, :], other=0.0)
    held_row = POOL + tl.load(ROWS + row) * pool_stride_row

    peak = tl.full([HEAD_ROWS], -float("inf"), tl.float32)
    total = tl.zeros([HEAD_ROWS], tl.float32)
    sums = tl.zeros([HEAD_ROWS, RANK_TILE], tl.float32)
    if split == 0:
        # from the arguments, in the precision of the pool: what another program stores is not to be read
        entry = NEW + row * new_stride_row
        new = tl.load(entry + ranks, mask=in_rank, other=0.0).to(POOL.dtype.element_ty)
        new_pe = tl.load(entry + RANK + turns, mask=in_rotary, other=0.0).to(POOL.dtype.element_ty)
        if tile == 0:
            tl.store(held_row + position * width + ranks, new, mask=in_rank)
            tl.store(held_row + position * width + RANK + turns, new_pe, mask=in_rotary)
        products = tl.sum(q_latent.to(tl.float32) * new.to(tl.float32)[None, :], 1)
        products += tl.sum(q_pe.to(tl.float32) * new_pe.to(tl.float32)[None, :], 1)
        peak = capped(products, scale, 1.0, False)
        total = tl.full([HEAD_ROWS], 1.0, tl.float32)
        sums += new.to(tl.float32)[None, :]

    for first in range(begin, end, BLOCK):
        tokens = first + tl.arange(0, BLOCK)
        held = tokens < end
        entries = held_row + tokens.to(tl.int64)[:, None] * width
        latents = tl.load(entries + ranks[None, :], mask=held[:, None] & in_rank[None, :], other=0.0)
        turned = tl.load(entries + RANK + turns[None, :], mask=held[:, None] & in_rotary[None, :], other=0.0)
        latents, turned = latents.to(q_latent.dtype), turned.to(q_latent.dtype)
        products = tl.dot(q_latent, tl.trans(latents), input_precision="tf32x3")
        products = tl.dot(q_pe, tl.trans(turned), products, input_precision="tf32x3")
        scores = tl.where(held[None, :], capped(products, scale, 1.0, False), -float("inf"))
        peak, total, sums = fold(scores, latents, peak, total, sums)

    store_part(
        PARTS, LOGS, row * HEADS * SPLITS + split, heads, ranks, there, peak, total, sums, SPLITS, RANK
    )


def attend_latent_splits(
    q_BTHX: Tensor,
    new_BTX: Tensor,
    pool: Tensor,
    rows_B: Tensor,
    positions_BT: Tensor,
    window: Tensor,
    scale: float,
    rank: int,
    tiling: SplitTiling,
) -> Tensor:
    """``fuel::attend_latent`` for T == 1; arguments as there. No device value is read on the host.

    Two launches: splits, then their combination. The pool may be a view of the first tokens of a
    longer one; the entries of a row are contiguous.
    """
    batch, _, heads, width = q_BTHX.shape
    out_BTHK = q_BTHX.new_empty((batch, 1, heads, rank))
    parts = Parts(batch, heads, rank, tiling, q_BTHX.device)
    grid = (tiling.splits, triton.cdiv(heads, tiling.head_rows), batch)
    attend_latent_kernel[grid](
        q_BTHX,
        new_BTX,
        pool,
        rows_B,
        positions_BT,
        window,
        parts.means,
        parts.logs,
        positions_BT.stride(0),
        q_BTHX.stride(0),
        q_BTHX.stride(2),
        new_BTX.stride(0),
        pool.stride(0),
        scale,
        HEADS=heads,
        RANK=rank,
        RANK_TILE=padded(rank),
        ROTARY=width - rank,
        ROTARY_TILE=padded(width - rank),
        HEAD_ROWS=tiling.head_rows,
        BLOCK=tiling.block_tokens,
        SPLITS=tiling.splits,
        num_warps=tiling.warps,
        num_stages=tiling.stages,
    )
    parts.combine(positions_BT, window, out_BTHK)
    return out_BTHK
