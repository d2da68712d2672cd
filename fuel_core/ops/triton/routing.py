"""Choosing experts from their logits as one Triton kernel.

Letters: N tokens, E experts, K chosen for a token.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def route_kernel(
    LOGITS,
    BIAS,
    IDS,
    WEIGHTS,
    scale,
    EXPERTS: tl.constexpr,
    CHOSEN: tl.constexpr,
    TILE: tl.constexpr,
    CHOSEN_TILE: tl.constexpr,
    SOFTMAX: tl.constexpr,
    BIASED: tl.constexpr,
    NORMALISE: tl.constexpr,
):
    """One token: its best experts in turn, each weighed by its score alone."""
    token = tl.program_id(0).to(tl.int64)
    experts, places = tl.arange(0, TILE), tl.arange(0, CHOSEN_TILE)
    there = experts < EXPERTS
    logits = tl.load(LOGITS + token * EXPERTS + experts, mask=there, other=-float("inf"))
    if SOFTMAX:
        grown = tl.exp(logits - tl.max(logits, 0))
        scores = grown / tl.sum(grown, 0)
    else:
        scores = 1.0 / (1.0 + tl.exp(-logits))
    choice = tl.where(there, scores, -float("inf"))
    if BIASED:
        choice += tl.load(BIAS + experts, mask=there, other=0.0)
    ids, weights = tl.zeros([CHOSEN_TILE], tl.int64), tl.zeros([CHOSEN_TILE], tl.float32)
    for place in range(CHOSEN):
        best = tl.argmax(choice, 0)
        ids = tl.where(places == place, best, ids)
        weights = tl.where(places == place, tl.sum(tl.where(experts == best, scores, 0.0), 0), weights)
        choice = tl.where(experts == best, -float("inf"), choice)
    if NORMALISE:
        weights = weights / (tl.sum(weights, 0) + 1e-20)
    kept = places < CHOSEN
    tl.store(IDS + token * CHOSEN + places, ids, mask=kept)
    tl.store(WEIGHTS + token * CHOSEN + places, weights * scale, mask=kept)


def route(
    logits_NE: Tensor, bias_E: Tensor | None, *, chosen: int, softmax: bool, normalise: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """The ids of the best experts, int64 ``[N, K]``, and their weights, float32 ``[N, K]``.

    Args:
        logits_NE: float32, contiguous.
        bias_E: float32, added to the scores that choose; None for none.
        softmax: scores are a softmax over all experts, else each logit's sigmoid.
        normalise, scale: the weights are divided by their sum, and then multiplied.
    """
    tokens, experts = logits_NE.shape
    ids = torch.empty(tokens, chosen, dtype=torch.int64, device=logits_NE.device)
    weights = torch.empty(tokens, chosen, dtype=torch.float32, device=logits_NE.device)
    route_kernel[(tokens,)](
        logits_NE,
        bias_E,
        ids,
        weights,
        scale,
        EXPERTS=experts,
        CHOSEN=chosen,
        TILE=triton.next_power_of_2(experts),
        CHOSEN_TILE=triton.next_power_of_2(chosen),
        SOFTMAX=softmax,
        BIASED=bias_E is not None,
        NORMALISE=normalise,
        num_warps=1,
    )
    return ids, weights
