"""Multi-head latent attention (MLA) over cached latents, in its two forms.

A token's cache entry is its latent of K and one rotated key of R that all heads share. Head h has the
key ``[W_UK[h] latent, k_pe]`` and the value ``W_UV[h] latent``. *Expanded*, these are computed for every
cached token. *Absorbed*, W_UK is folded into the query and W_UV into the output, so that attention is
that of H query heads over the cache entries themselves:

    q . (W_UK c) = (W_UK^T q) . c          sum_s p_s (W_UV c_s) = W_UV (sum_s p_s c_s)

Both are exact; they round differently. Source: DeepSeek-V2 (arXiv:2405.04434), section 2.1.

Letters: B rows of this step, T new tokens, H heads, N unrotated and R rotated dims of a head, V value
dim, K latent rank, C capacity, S attended tokens.
"""

import torch
from torch import Tensor

from fuel_core.ops.held import attend_capacity, attend_row, check_mask, live_spans
from fuel_core.ops.projection import TILE_ELEMENTS, dot_kernel, project

torch.library.define(
    "fuel::attend_latent",
    "(Tensor q, Tensor new, Tensor(a!) pool, Tensor rows, Tensor positions, Tensor window, Tensor? mask, "
    "float scale, int rank) -> Tensor",
)
torch.library.define(
    "fuel::attend_expanded",
    "(Tensor q, Tensor new, Tensor(a!) pool, Tensor w_kv, Tensor rows, Tensor positions, Tensor window, "
    "Tensor? mask, float scale) -> Tensor",
)


def attend_absorbed(
    q_nope_BTHN: Tensor,
    q_pe_BTHR: Tensor,
    new_BTS: Tensor,
    pool: Tensor,
    w_kv_HOK: Tensor,
    rows_B: Tensor,
    positions_BT: Tensor,
    window: Tensor,
    mask_TS: Tensor | None,
    scale: float,
) -> Tensor:
    """Write this step's cache entries, then attend to the latents themselves.

    Args:
        q_nope_BTHN, q_pe_BTHR: the query, its second part rotated.
        new_BTS: latent and rotated key of each new token, ``[B, T, K + R]``.
        pool: ``[rows, C, K + R]``, written in place; may have another dtype.
        w_kv_HOK: W_UK and W_UV of each head one upon the other, ``[H, N + V, K]``; may have another dtype.
        rows_B, positions_BT, window, mask_TS, scale: as for :func:`fuel_core.ops.attend`.

    Returns:
        ``[B, T, H, V]`` in the dtype of the query. Not differentiable.

    Raises:
        GeometryError: several tokens without a mask, or a mask and one token.
    """
    check_mask(q_nope_BTHN.shape[1], mask_TS)
    q = absorb_query(q_nope_BTHN, q_pe_BTHR, w_kv_HOK)
    context_BTHK: Tensor = torch.ops.fuel.attend_latent(
        q, new_BTS, pool, rows_B, positions_BT, window, mask_TS, scale, w_kv_HOK.shape[-1]
    )
    return expand_context(context_BTHK, w_kv_HOK, q_nope_BTHN.shape[-1])


def attend_expanded(
    q_nope_BTHN: Tensor,
    q_pe_BTHR: Tensor,
    new_BTS: Tensor,
    pool: Tensor,
    w_kv_HOK: Tensor,
    rows_B: Tensor,
    positions_BT: Tensor,
    window: Tensor,
    mask_TS: Tensor | None,
    scale: float,
) -> Tensor:
    """As :func:`attend_absorbed`, by the keys and values of every attended token."""
    check_mask(q_nope_BTHN.shape[1], mask_TS)
    q = torch.cat((q_nope_BTHN, q_pe_BTHR), dim=-1)
    out_BTHV: Tensor = torch.ops.fuel.attend_expanded(
        q, new_BTS, pool, w_kv_HOK, rows_B, positions_BT, window, mask_TS, scale
    )
    return out_BTHV


def split_heads(w_kv_HOK: Tensor, nope_dim: int) -> tuple[Tensor, Tensor]:
    """W_UK ``[H, N, K]`` and W_UV ``[H, V, K]``: views of one parameter, no copy."""
    return w_kv_HOK[:, :nope_dim], w_kv_HOK[:, nope_dim:]


def absorb_query(q_nope_BTHN: Tensor, q_pe_BTHR: Tensor, w_kv_HOK: Tensor) -> Tensor:
    """The query that reads cache entries: ``[B, T, H, K + R]``."""
    w_uk, _ = split_heads(w_kv_HOK, q_nope_BTHN.shape[-1])
    return torch.cat((_by_head(q_nope_BTHN, w_uk), q_pe_BTHR), dim=-1)


def expand_context(context_BTHK: Tensor, w_kv_HOK: Tensor, nope_dim: int) -> Tensor:
    """What attention over latents found, as values: ``[B, T, H, V]``."""
    _, w_uv = split_heads(w_kv_HOK, nope_dim)
    with dot_kernel(context_BTHK, rows=context_BTHK.shape[0] * context_BTHK.shape[1]):
        return _by_head(context_BTHK, w_uv.transpose(1, 2))


def expand(entries_XS: Tensor, w_kv_HOK: Tensor, nope_dim: int) -> tuple[Tensor, Tensor]:
    """Keys ``[..., H, N + R]`` and values ``[..., H, V]`` of cache entries ``[..., K + R]``."""
    heads, outputs, rank = w_kv_HOK.shape
    latent, k_pe = entries_XS[..., :rank], entries_XS[..., rank:]
    kv = project(latent, w_kv_HOK.flatten(0, 1)).unflatten(-1, (heads, outputs))
    shared = k_pe[..., None, :].expand(*k_pe.shape[:-1], heads, k_pe.shape[-1])
    return torch.cat((kv[..., :nope_dim], shared), dim=-1), kv[..., nope_dim:]


def _by_head(x_BTHI: Tensor, w_HIO: Tensor) -> Tensor:
    """Each head through its own matrix; weights of another dtype are cast a few heads at a time."""
    x_HXI = x_BTHI.flatten(0, 1).transpose(0, 1)
    if w_HIO.dtype == x_BTHI.dtype:
        y_HXO = torch.bmm(x_HXI, w_HIO)
    else:
        most = max(1, TILE_ELEMENTS // w_HIO[0].numel())
        tiles = zip(x_HXI.split(most), w_HIO.split(most), strict=True)
        y_HXO = torch.cat([torch.bmm(x, w.to(x.dtype)) for x, w in tiles])
    return y_HXO.transpose(0, 1).unflatten(0, x_BTHI.shape[:2])


def latent_reference(
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
    """The definition, for every device: H query heads over one key head whose first K are the value."""
    pool[rows[:, None], positions] = new.to(pool.dtype)
    entries = pool[rows][:, None]
    return attend_capacity(q, entries, entries[..., :rank], positions, window, mask, scale, None)


def latent_cpu(
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
    """Touches the live prefix alone, once for keys and once for values."""
    outputs = []
    for span in live_spans(rows, positions, window, pool.shape[1]):
        pool[span.row, span.start : span.stop] = new[span.index]
        live = slice(span.low, span.stop)
        entries = pool[span.row, live].to(q.dtype)[None]
        seen = None if mask is None else mask[:, live]
        # values as wide as keys: the further columns cost less than a copy of the first
        outputs.append(attend_row(q[span.index], entries, entries, seen, scale, None)[..., :rank])
    return torch.stack(outputs)


def expanded_reference(
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
    """The definition, for every device: expands the whole capacity, no value on the host."""
    pool[rows[:, None], positions] = new.to(pool.dtype)
    keys, values = expand(pool[rows].to(q.dtype), w_kv, q.shape[-1] - (pool.shape[-1] - w_kv.shape[-1]))
    keys, values = keys.transpose(1, 2), values.transpose(1, 2)
    return attend_capacity(q, keys, values, positions, window, mask, scale, None)


def expanded_cpu(
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
    """Expands the live prefix alone."""
    nope_dim = q.shape[-1] - (pool.shape[-1] - w_kv.shape[-1])
    outputs = []
    for span in live_spans(rows, positions, window, pool.shape[1]):
        pool[span.row, span.start : span.stop] = new[span.index]
        live = slice(span.low, span.stop)
        keys, values = expand(pool[span.row, live].to(q.dtype), w_kv, nope_dim)
        seen = None if mask is None else mask[:, live]
        keys, values = keys.transpose(0, 1), values.transpose(0, 1)
        outputs.append(attend_row(q[span.index], keys, values, seen, scale, None))
    return torch.stack(outputs)


def _latent_shape(q: Tensor, new: Tensor, pool: Tensor, *rest: object) -> Tensor:
    rank = rest[-1]
    assert isinstance(rank, int)
    return q.new_empty((*q.shape[:-1], rank))


def _expanded_shape(q: Tensor, new: Tensor, pool: Tensor, w_kv: Tensor, *_: object) -> Tensor:
    nope_dim = q.shape[-1] - (pool.shape[-1] - w_kv.shape[-1])
    return q.new_empty((*q.shape[:-1], w_kv.shape[1] - nope_dim))


torch.library.impl("fuel::attend_latent", "CompositeExplicitAutograd", latent_reference)
torch.library.impl("fuel::attend_latent", "CPU", latent_cpu)
torch.library.register_fake("fuel::attend_latent", _latent_shape)

torch.library.impl("fuel::attend_expanded", "CompositeExplicitAutograd", expanded_reference)
torch.library.impl("fuel::attend_expanded", "CPU", expanded_cpu)
torch.library.register_fake("fuel::attend_expanded", _expanded_shape)
