"""``fuel::attend``: store this step's keys and values, then attend to what the rows hold.

Letters: B rows of this step, T new tokens, H query heads, G key/value heads, D head dim,
C capacity, S attended tokens. Pools are ``[rows, G, C, D]``.

Shapes are fixed: neither they nor the schema depend on a row's length. Query heads are folded into
their group's rows, so no kernel ever expands a cache to H heads.
"""

import torch
from torch import Tensor

from fuel_core.ops.held import attend_capacity, attend_row, check_mask, live_spans

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
    check_mask(q_BTHD.shape[1], mask_TS)
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
    k_pool[rows[:, None], :, positions] = k_new.to(k_pool.dtype)
    v_pool[rows[:, None], :, positions] = v_new.to(v_pool.dtype)
    return attend_capacity(q, k_pool[rows], v_pool[rows], positions, window, mask, scale, softcap)


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
    outputs = []
    for span in live_spans(rows, positions, window, k_pool.shape[2]):
        b, held, live = span.index, slice(span.start, span.stop), slice(span.low, span.stop)
        k_pool[span.row, :, held] = k_new[b].transpose(0, 1)
        v_pool[span.row, :, held] = v_new[b].transpose(0, 1)
        keys, values = k_pool[span.row, :, live].to(q.dtype), v_pool[span.row, :, live].to(q.dtype)
        seen = None if mask is None else mask[:, live]
        outputs.append(attend_row(q[b], keys, values, seen, scale, softcap))
    return torch.stack(outputs)


def _attend_shape(q: Tensor, *_: object) -> Tensor:
    return torch.empty_like(q)


torch.library.impl("fuel::attend", "CompositeExplicitAutograd", attend_reference)
torch.library.impl("fuel::attend", "CPU", attend_cpu)
torch.library.register_fake("fuel::attend", _attend_shape)
