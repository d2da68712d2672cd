"""Cached attention in torch's own operations, with no value read on the host.

Letters: B rows of this step, T new tokens, H query heads, G key/value heads, D head dim, E value dim,
C capacity, S attended tokens.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from fuel_core.errors import CapacityError
from fuel_core.ops.held import attend_capacity, attend_row
from fuel_core.plans.mask import visible


def attended_tokens(mask_TS: Tensor, capacity: int) -> int:
    """How many tokens a row holds after a step of several: the mask's shape tells, so nothing is read.

    Raises:
        CapacityError: more than the row can hold.
    """
    attended = mask_TS.shape[-1]
    if attended > capacity:
        raise CapacityError(f"position {attended - 1} is beyond the capacity of {capacity} tokens")
    return attended


def attend_prefix(
    q_BTHD: Tensor,
    k_BGSD: Tensor,
    v_BGSE: Tensor,
    mask_TS: Tensor,
    scale: float,
    softcap: float | None,
) -> Tensor:
    """Attention of several tokens of one row over its live prefix: ``[1, T, H, E]``."""
    keys, values = k_BGSD[0].to(q_BTHD.dtype), v_BGSE[0].to(q_BTHD.dtype)
    # a head of every group at a time, over keys as they lie: one launch over keys repeated by a stride
    # of zero has answered wrongly where S % 32 == 1 (torch 2.13, its efficient backend)
    return attend_row(q_BTHD[0], keys, values, mask_TS, scale, softcap)[None]


def attend_bucket(
    q_BTHD: Tensor,
    k_BGCD: Tensor,
    v_BGCE: Tensor,
    positions_BT: Tensor,
    window: Tensor,
    scale: float,
    softcap: float | None,
) -> Tensor:
    """Attention of one token a row over all C slots, of which a mask hides the unseen: ``[B, 1, H, E]``.

    The cost follows C. Whoever knows the lengths on the host keeps it near them: by pools that are
    views of the first tokens of longer ones.

    Args:
        k_BGCD, v_BGCE: this step's rows, copied from the pool; overwritten where unseen.
    """
    if softcap is not None:
        return attend_capacity(q_BTHD, k_BGCD, v_BGCE, positions_BT, window, None, scale, softcap)
    batch, _, heads, dim = q_BTHD.shape
    groups, capacity = k_BGCD.shape[1:3]
    slots_C = torch.arange(capacity, device=q_BTHD.device)
    seen_BC = visible(positions_BT, slots_C, window)
    # an unseen slot may hold anything, NaN included, which neither a weight of 0 nor -inf takes away
    unseen_B1C1 = ~seen_BC[:, None, :, None]
    keys = k_BGCD.masked_fill_(unseen_B1C1, 0).to(q_BTHD.dtype)
    values = v_BGCE.masked_fill_(unseen_B1C1, 0).to(q_BTHD.dtype)
    q_BGRD = q_BTHD.view(batch, groups, heads // groups, dim)  # a group's heads are its rows
    seen_B11C = seen_BC[:, None, None, :]
    out = F.scaled_dot_product_attention(q_BGRD, keys, values, seen_B11C, scale=scale)
    return out.reshape(batch, 1, heads, v_BGCE.shape[-1])
