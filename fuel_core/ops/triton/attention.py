"""``fuel::attend`` of one token a row, as a Triton kernel over splits of the live keys.

Letters: B rows, H query heads, G key/value heads, D head dim, C capacity. Pools are ``[rows, G, C, D]``.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from fuel_core.ops.triton.split import Parts, capped, fold, split_range, store_part
from fuel_core.ops.triton.tiling import SplitTiling, padded


# positions lie within the packed inputs: aligned or not, by the batch size
@triton.jit(do_not_specialize_on_alignment=["POSITIONS"])
def attend_kernel(
    Q,
    K_NEW,
    V_NEW,
    K_POOL,
    V_POOL,
    ROWS,
    POSITIONS,
    WINDOW,
    PARTS,
    LOGS,
    position_stride,
    q_stride_row,
    q_stride_head,
    k_new_stride_row,
    k_new_stride_group,
    v_new_stride_row,
    v_new_stride_group,
    k_stride_row,
    k_stride_group,
    v_stride_row,
    v_stride_group,
    scale,
    softcap,
    GROUPS: tl.constexpr,
    MEMBERS: tl.constexpr,
    DIM: tl.constexpr,
    DIM_TILE: tl.constexpr,
    HEAD_ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLITS: tl.constexpr,
    CAPPED: tl.constexpr,
):
    """One split of one group's tile of query heads; the first split also stores the new token."""
    split, row = tl.program_id(0), tl.program_id(2).to(tl.int64)
    tiles: tl.constexpr = (MEMBERS + HEAD_ROWS - 1) // HEAD_ROWS
    group, tile = tl.program_id(1) // tiles, tl.program_id(1) % tiles
    position = tl.load(POSITIONS + row * position_stride)
    begin, end = split_range(position, tl.load(WINDOW), split, SPLITS, BLOCK)
    if (split > 0) & (begin >= end):
        return

    members = tile * HEAD_ROWS + tl.arange(0, HEAD_ROWS)
    heads = group * MEMBERS + members
    there = members < MEMBERS
    dims = tl.arange(0, DIM_TILE)
    inside = dims < DIM
    queries = Q + row * q_stride_row + heads[:, None] * q_stride_head + dims[None, :]
    q = tl.load(queries, mask=there[:, None] & inside[None, :], other=0.0)
    pool_row = tl.load(ROWS + row)
    k_row = K_POOL + pool_row * k_stride_row + group.to(tl.int64) * k_stride_group
    v_row = V_POOL + pool_row * v_stride_row + group.to(tl.int64) * v_stride_group

    peak = tl.full([HEAD_ROWS], -float("inf"), tl.float32)
    total = tl.zeros([HEAD_ROWS], tl.float32)
    sums = tl.zeros([HEAD_ROWS, DIM_TILE], tl.float32)
    if split == 0:
        # from the arguments, in the precision of the pool: what another program stores is not to be read
        k_new = tl.load(
            K_NEW + row * k_new_stride_row + group * k_new_stride_group + dims, mask=inside, other=0.0
        )
        v_new = tl.load(
            V_NEW + row * v_new_stride_row + group * v_new_stride_group + dims, mask=inside, other=0.0
        )
        k_new = k_new.to(K_POOL.dtype.element_ty)
        v_new = v_new.to(V_POOL.dtype.element_ty)
        if tile == 0:
            tl.store(k_row + position * DIM + dims, k_new, mask=inside)
            tl.store(v_row + position * DIM + dims, v_new, mask=inside)
        products = tl.sum(q.to(tl.float32) * k_new.to(tl.float32)[None, :], 1)
        peak = capped(products, scale, softcap, CAPPED)
        total = tl.full([HEAD_ROWS], 1.0, tl.float32)
        sums += v_new.to(tl.float32)[None, :]

    for first in range(begin, end, BLOCK):
        tokens = first + tl.arange(0, BLOCK)
        held = tokens < end
        kept = held[:, None] & inside[None, :]
        offsets = tokens.to(tl.int64)[:, None] * DIM + dims[None, :]
        keys = tl.load(k_row + offsets, mask=kept, other=0.0).to(q.dtype)
        values = tl.load(v_row + offsets, mask=kept, other=0.0).to(q.dtype)
        products = tl.dot(q, tl.trans(keys), input_precision="tf32x3")
        scores = tl.where(held[None, :], capped(products, scale, softcap, CAPPED), -float("inf"))
        peak, total, sums = fold(scores, values, peak, total, sums)

    part = row * GROUPS * MEMBERS * SPLITS + split
    store_part(PARTS, LOGS, part, heads, dims, there, peak, total, sums, SPLITS, DIM)


def attend_splits(
    q_BTHD: Tensor,
    k_new_BTGD: Tensor,
    v_new_BTGD: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    rows_B: Tensor,
    positions_BT: Tensor,
    window: Tensor,
    scale: float,
    softcap: float | None,
    tiling: SplitTiling,
) -> Tensor:
    """``fuel::attend`` for T == 1; arguments as there. No device value is read on the host.

    Two launches: splits, then their combination. Pools may be views of the first tokens of longer
    ones; a token's values are contiguous, and so are its pool row's tokens.
    """
    batch, _, heads, dim = q_BTHD.shape
    groups = k_pool.shape[1]
    members = heads // groups
    out_BTHD = torch.empty_like(q_BTHD)
    parts = Parts(batch, heads, dim, tiling, q_BTHD.device)
    grid = (tiling.splits, groups * triton.cdiv(members, tiling.head_rows), batch)
    attend_kernel[grid](
        q_BTHD,
        k_new_BTGD,
        v_new_BTGD,
        k_pool,
        v_pool,
        rows_B,
        positions_BT,
        window,
        parts.means,
        parts.logs,
        positions_BT.stride(0),
        q_BTHD.stride(0),
        q_BTHD.stride(2),
        k_new_BTGD.stride(0),
        k_new_BTGD.stride(2),
        v_new_BTGD.stride(0),
        v_new_BTGD.stride(2),
        k_pool.stride(0),
        k_pool.stride(1),
        v_pool.stride(0),
        v_pool.stride(1),
        scale,
        1.0 if softcap is None else softcap,
        GROUPS=groups,
        MEMBERS=members,
        DIM=dim,
        DIM_TILE=padded(dim),
        HEAD_ROWS=tiling.head_rows,
        BLOCK=tiling.block_tokens,
        SPLITS=tiling.splits,
        CAPPED=softcap is not None,
        num_warps=tiling.warps,
        num_stages=tiling.stages,
    )
    parts.combine(positions_BT, window, out_BTHD)
    return out_BTHD
