"""fuel's operations on CUDA: which kernel serves which call.

Attention of one token a row, and experts, go to Triton kernels where triton is installed and the kernel can
honour the call; otherwise, and for attention of several tokens, torch's own operations serve. Nothing here
reads a device value on the host, so all of it can be captured.

Letters: B rows, T new tokens, H query heads, K latent rank, N unrotated and R rotated dims of a head.
"""

import torch
from torch import Tensor

from fuel_core.ops.experts import experts_reference
from fuel_core.ops.kernels import knows_dtypes, knows_heads, knows_latent
from fuel_core.ops.latent import expand, expanded_reference
from fuel_core.ops.on_device import attend_bucket, attend_prefix, attended_tokens
from fuel_core.ops.triton.tiling import SplitTiling, padded, split_tiling
from fuel_core.plans.model_plan import ActivationName


def attend_cuda(
    q: Tensor,
    k_new: Tensor,
    v_new: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    rows: Tensor,
    positions: Tensor,
    window: Tensor,
    mask: Tensor | None,
    scale: float,
    softcap: float | None,
) -> Tensor:
    """``fuel::attend``."""
    groups, capacity, dim = k_pool.shape[1:]
    known = knows_heads(dim, q.dtype, k_pool.dtype)
    if mask is None and known and _lies_well(k_pool) and _lies_well(v_pool):
        from fuel_core.ops.triton.attention import attend_splits

        tiling = _tiling(q, k_pool, groups, capacity, 2 * padded(dim))
        q, k_new, v_new = _dense(q), _dense(k_new), _dense(v_new)
        with torch.cuda.device_of(q):
            return attend_splits(
                q, k_new, v_new, k_pool, v_pool, rows, positions, window, scale, softcap, tiling
            )
    live = capacity if mask is None else attended_tokens(mask, capacity)
    k_pool[rows[:, None], :, positions] = k_new.to(k_pool.dtype)
    v_pool[rows[:, None], :, positions] = v_new.to(v_pool.dtype)
    # narrowed before rows are taken: taking them copies
    keys, values = k_pool[:, :, :live].index_select(0, rows), v_pool[:, :, :live].index_select(0, rows)
    if mask is not None:
        return attend_prefix(q, keys, values, mask, scale, softcap)
    return attend_bucket(q, keys, values, positions, window, scale, softcap)


def latent_cuda(
    q: Tensor,
    new: Tensor,
    pool: Tensor,
    rows: Tensor,
    positions: Tensor,
    window: Tensor,
    mask: Tensor | None,
    scale: float,
    rank: int,
) -> Tensor:
    """``fuel::attend_latent``."""
    capacity, width = pool.shape[1:]
    if mask is None and knows_latent(rank, q.dtype, pool.dtype, q.device) and _lies_well(pool):
        from fuel_core.ops.triton.latent import attend_latent_splits

        tiling = _tiling(q, pool, 1, capacity, padded(rank) + padded(width - rank))
        q, new = _dense(q), _dense(new)
        with torch.cuda.device_of(q):
            return attend_latent_splits(q, new, pool, rows, positions, window, scale, rank, tiling)
    live = capacity if mask is None else attended_tokens(mask, capacity)
    pool[rows[:, None], positions] = new.to(pool.dtype)
    entries = pool[:, :live].index_select(0, rows)[:, None]
    # values as wide as keys: the further columns cost less than a copy of the first
    if mask is not None:
        return attend_prefix(q, entries, entries, mask, scale, None)[..., :rank]
    return attend_bucket(q, entries, entries, positions, window, scale, None)[..., :rank]


def expanded_cuda(
    q: Tensor,
    new: Tensor,
    pool: Tensor,
    w_kv: Tensor,
    rows: Tensor,
    positions: Tensor,
    window: Tensor,
    mask: Tensor | None,
    scale: float,
) -> Tensor:
    """``fuel::attend_expanded``: the form for several tokens. For one, the definition serves."""
    if mask is None:
        return expanded_reference(q, new, pool, w_kv, rows, positions, window, mask, scale)
    live = attended_tokens(mask, pool.shape[1])
    pool[rows[:, None], positions] = new.to(pool.dtype)
    entries = pool[:, :live].index_select(0, rows).to(q.dtype)
    keys, values = expand(entries, w_kv, q.shape[-1] - (pool.shape[-1] - w_kv.shape[-1]))
    return attend_prefix(q, keys.transpose(1, 2), values.transpose(1, 2), mask, scale, None)


def experts_cuda(
    x: Tensor, gate_up: Tensor, down: Tensor, ids: Tensor, weights: Tensor, activation: ActivationName
) -> Tensor:
    """``fuel::experts``. Without a kernel the definition serves, at the cost of every expert."""
    if not knows_dtypes(x.dtype, gate_up.dtype):
        return experts_reference(x, gate_up, down, ids, weights, activation)
    from fuel_core.ops.triton.experts import experts_on_device

    gate_up, down = gate_up.contiguous(), down.contiguous()
    with torch.cuda.device_of(x):
        return experts_on_device(_dense(x), gate_up, down, ids.contiguous(), weights.contiguous(), activation)


def _lies_well(pool: Tensor) -> bool:
    """Whether the tokens of a row follow each other, as the kernels of cached attention read them."""
    return pool.stride(-1) == 1 and pool.stride(-2) == pool.shape[-1]


def _tiling(q: Tensor, pool: Tensor, groups: int, capacity: int, columns: int) -> SplitTiling:
    batch, _, heads, _ = q.shape
    return split_tiling(
        batch=batch,
        groups=groups,
        members=heads // groups,
        capacity=capacity,
        columns=columns,
        itemsize=max(q.itemsize, pool.itemsize),
        processors=torch.cuda.get_device_properties(q.device).multi_processor_count,
    )


def _dense(x: Tensor) -> Tensor:
    """With a last dimension that lies in one piece; a slice of a fused projection is taken as it is."""
    return x if x.stride(-1) == 1 else x.contiguous()


torch.library.impl("fuel::attend", "CUDA", attend_cuda)
torch.library.impl("fuel::attend_latent", "CUDA", latent_cuda)
torch.library.impl("fuel::attend_expanded", "CUDA", expanded_cuda)
torch.library.impl("fuel::experts", "CUDA", experts_cuda)
