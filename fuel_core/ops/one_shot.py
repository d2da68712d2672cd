"""Attention over the tokens of one call, without a cache: plain, differentiable, any mask.

It shares no code with ``fuel::attend`` on purpose: each is the other's oracle.

Letters: B sequences, T tokens, H query heads, G key/value heads, R = H/G heads a group, D head dim,
E value dim.
"""

import torch
from torch import Tensor

from fuel_core.ops.precision import at_least_float32


def attend_one_shot(
    q_BTHD: Tensor,
    k_BTGD: Tensor,
    v_BTGE: Tensor,
    mask: Tensor,
    scale: float,
    softcap: float | None,
) -> Tensor:
    """Attend from each token to the tokens that ``mask`` lets it see.

    Args:
        q_BTHD, k_BTGD, v_BTGE: one floating dtype.
        mask: broadcastable to ``[B, T, T]`` (query, key); bool with True for visible, or floating
            and added to the scores. A query that sees no key yields zeros.
        scale: factor on the scores.
        softcap: scores become ``softcap * tanh(scores / softcap)``; None leaves them.

    Returns:
        ``[B, T, H, E]`` in the dtype of ``q``.
    """
    batch, tokens, heads, dim = q_BTHD.shape
    groups = k_BTGD.shape[2]
    q_BGMD = (
        q_BTHD.view(batch, tokens, groups, heads // groups, dim).permute(0, 2, 3, 1, 4).flatten(2, 3)
    )  # M = R * T
    scores = at_least_float32(torch.matmul(q_BGMD, k_BTGD.permute(0, 2, 3, 1)) * scale)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.view(batch, groups, heads // groups, tokens, tokens)

    seen = mask if mask.dtype is torch.bool else mask > -torch.inf
    blind = ~seen.any(dim=-1, keepdim=True)
    scores = scores if mask.dtype is torch.bool else scores + _over_heads(mask)
    # a blind query attends to everything here and to nothing below: softmax over no key is NaN
    scores = scores.masked_fill(_over_heads(~(seen | blind)), -torch.inf)
    weights = torch.softmax(torch.where(_over_heads(blind), 0.0, scores), dim=-1)
    weights = weights.masked_fill(_over_heads(blind), 0)

    out_BGME = torch.matmul(weights.to(v_BTGE.dtype).flatten(2, 3), v_BTGE.transpose(1, 2))
    out = out_BGME.view(batch, groups, heads // groups, tokens, -1)
    return out.permute(0, 3, 1, 2, 4).reshape(batch, tokens, heads, -1)


def _over_heads(mask: Tensor) -> Tensor:
    """[T, S] as it is, [B, T, S] as [B, 1, 1, T, S]."""
    return mask if mask.dim() < 3 else mask[:, None, None]
