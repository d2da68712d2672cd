"""``fuel::attend``: store this step's keys and values, then attend to what the rows hold.

Letters: B rows of this step, T new tokens, H query heads, G key/value heads, D head dim,
C capacity, S attended tokens. Pools are ``[rows, G, C, D]``.

Shapes are fixed: neither they nor the schema depend on a row's length. Query heads are folded into
their group's rows, so no kernel ever expands a cache to H heads.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from fuel_core.errors import CapacityError, GeometryError
from fuel_core.ops.precision import at_least_float32
from fuel_core.plans.mask import first_visible, visible

torch.library.define(
    "fuel::attend",
    "(Tensor q, Tensor k_new, Tensor v_new, Tensor(a!) k_pool, Tensor(b!) v_pool, Tensor rows, "
    "Tensor positions, Tensor window, Tensor? mask, float scale, float? softcap) -> Tensor",
)


def attend(
    q_BTHD: Tensor,
    k_new_BTGD: Tensor,
    v_new_BTGD: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    rows_B: Tensor,
    positions_BT: Tensor,
    window: Tensor,
    mask_TS: Tensor | None,
    scale: float,
    softcap: float | None,
) -> Tensor:
    """Write ``k_new`` and ``v_new`` at ``positions`` of ``rows``, then attend causally.

    Args:
        q_BTHD, k_new_BTGD, v_new_BTGD: of one floating dtype; H is a multiple of G.
        k_pool, v_pool: ``[rows, G, C, D]``, written in place; may have another dtype.
        rows_B: int64, the pool row of each sequence.
        positions_BT: int64, consecutive along T; the token at position p attends to 0..p.
        window: int64 scalar, the window in tokens (``UNBOUNDED`` for none).
        mask_TS: bool, True where token T sees key S; needed for T > 1 (B is 1 then), None for T == 1.
        scale: factor on the scores.
        softcap: scores become ``softcap * tanh(scores / softcap)``; None leaves them.

    Returns:
        ``[B, T, H, D]`` in the dtype of ``q``. Not differentiable.

    Raises:
        GeometryError: several tokens without a mask, or a mask and one token.
    """
    if (q_BTHD.shape[1] > 1) != (mask_TS is not None):
        raise GeometryError(f"{q_BTHD.shape[1]} token(s) with{'out' if mask_TS is None else ''} a mask")
    out_BTHD: Tensor = torch.ops.fuel.attend(
        q_BTHD,
        k_new_BTGD,
        v_new_BTGD,
        k_pool,
        v_pool,
        rows_B,
        positions_BT,
        window,
        mask_TS,
        scale,
        softcap,
    )
    return out_BTHD


def attend_reference(
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
    """The definition, for every device: reads the whole capacity, no value on the host."""
    batch, tokens, heads, dim = q.shape
    groups, capacity = k_pool.shape[1], k_pool.shape[2]
    k_pool[rows[:, None], :, positions] = k_new.to(k_pool.dtype)
    v_pool[rows[:, None], :, positions] = v_new.to(v_pool.dtype)
    keys_B1GCD = k_pool[rows].to(q.dtype)[:, None]
    values_B1GCD = v_pool[rows].to(q.dtype)[:, None]
    slots_C = torch.arange(capacity, device=q.device)
    # what lies beyond the last token may hold anything, NaN included: 0 * NaN is no zero
    held_BC = slots_C <= positions[:, -1:]
    values_B1GCD = values_B1GCD.masked_fill(~held_BC[:, None, None, :, None], 0)

    q_BTGRD = q.view(batch, tokens, groups, heads // groups, dim)
    scores = torch.matmul(q_BTGRD, keys_B1GCD.transpose(-1, -2)) * scale
    seen_BTC = visible(positions[:, :, None], slots_C, window)
    if mask is not None:
        padded = F.pad(mask, (0, capacity - mask.shape[-1]), value=False)
        seen_BTC = seen_BTC & padded
    weights = _softmax(_cap(scores, softcap).masked_fill(~seen_BTC[:, :, None, None], -torch.inf))
    return torch.matmul(weights.to(q.dtype), values_B1GCD).reshape(q.shape)


def attend_cpu(
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
    """Touches the live prefix alone, so that a step costs what it attends, whatever the capacity."""
    tokens = q.shape[1]
    width = int(window)
    outputs = []
    for b, (row, start) in enumerate(zip(rows.tolist(), positions[:, 0].tolist(), strict=True)):
        stop = start + tokens
        if stop > k_pool.shape[2]:  # a slice would drop what lies beyond, in silence
            raise CapacityError(f"position {stop - 1} is beyond the capacity of {k_pool.shape[2]} tokens")
        k_pool[row, :, start:stop] = k_new[b].transpose(0, 1)
        v_pool[row, :, start:stop] = v_new[b].transpose(0, 1)
        low = max(0, first_visible(start, width))
        seen = None if mask is None else mask[:, low:stop]
        keys, values = k_pool[row, :, low:stop], v_pool[row, :, low:stop]
        outputs.append(_attend_row(q[b], keys.to(q.dtype), values.to(q.dtype), seen, scale, softcap))
    return torch.stack(outputs)


def _attend_row(
    q_THD: Tensor, k_GSD: Tensor, v_GSD: Tensor, seen_TS: Tensor | None, scale: float, softcap: float | None
) -> Tensor:
    tokens, heads, dim = q_THD.shape
    groups = k_GSD.shape[0]
    q_TGRD = q_THD.view(tokens, groups, heads // groups, dim)
    if tokens == 1 and softcap is None:
        return _sdpa(q_TGRD[0], k_GSD, v_GSD, None, scale).reshape(q_THD.shape)
    # one query head of every group at a time: folding all of them would repeat the T x S mask
    members = []
    for member in range(heads // groups):
        q_GTD = q_TGRD[:, :, member].transpose(0, 1)
        if softcap is None:
            members.append(_sdpa(q_GTD, k_GSD, v_GSD, seen_TS, scale))
        else:
            members.append(_capped(q_GTD, k_GSD, v_GSD, seen_TS, scale, softcap))
    return torch.stack(members, dim=2).permute(1, 0, 2, 3).reshape(q_THD.shape)


def _sdpa(q_GTD: Tensor, k_GSD: Tensor, v_GSD: Tensor, seen_TS: Tensor | None, scale: float) -> Tensor:
    return F.scaled_dot_product_attention(q_GTD[None], k_GSD[None], v_GSD[None], seen_TS, scale=scale)[0]


def _capped(
    q_GTD: Tensor, k_GSD: Tensor, v_GSD: Tensor, seen_TS: Tensor | None, scale: float, softcap: float
) -> Tensor:
    scores = _cap(torch.matmul(q_GTD, k_GSD.transpose(-1, -2)) * scale, softcap)
    if seen_TS is not None:
        scores = scores.masked_fill(~seen_TS, -torch.inf)
    return torch.matmul(_softmax(scores).to(v_GSD.dtype), v_GSD)


def _cap(scores: Tensor, softcap: float | None) -> Tensor:
    return scores if softcap is None else softcap * torch.tanh(scores / softcap)


def _softmax(scores: Tensor) -> Tensor:
    """Softmax over keys in at least float32."""
    return torch.softmax(at_least_float32(scores), dim=-1)


def _attend_shape(q: Tensor, *_: object) -> Tensor:
    return torch.empty_like(q)


torch.library.impl("fuel::attend", "CompositeExplicitAutograd", attend_reference)
torch.library.impl("fuel::attend", "CPU", attend_cpu)
torch.library.register_fake("fuel::attend", _attend_shape)
