"""Choosing experts from their logits.

Letters: N tokens, E experts, K chosen for a token, G groups, X experts of a group.

Sources: arXiv:2405.04434 section 2.2 (groups by their best expert), arXiv:2412.19437 section 2.1.2 (sigmoid
scores, a bias that only chooses, groups by their best two).
"""

import torch
from torch import Tensor

from fuel_core.ops.kernels import fuses
from fuel_core.plans.moe_plan import RouterPlan


def route(logits_NE: Tensor, bias_E: Tensor | None, plan: RouterPlan) -> tuple[Tensor, Tensor]:
    """Return ids ``[N, K]`` in int64, the best first, and weights ``[N, K]`` in the dtype of the logits.

    Args:
        logits_NE: of at least float32.
        bias_E: added to the scores that choose, never to those that weigh.
    """
    if fuses(logits_NE) and not plan.limited:
        from fuel_core.ops.triton.routing import route as fused

        with torch.cuda.device_of(logits_NE):
            return fused(
                logits_NE,
                bias_E,
                chosen=plan.chosen,
                softmax=plan.scoring == "softmax",
                normalise=plan.normalise,
                scale=plan.scale,
            )
    scores_NE = logits_NE.softmax(-1) if plan.scoring == "softmax" else logits_NE.sigmoid()
    choice_NE = scores_NE if bias_E is None else scores_NE + bias_E
    if plan.limited:
        choice_NE = _within_best_groups(choice_NE, plan)
    ids_NK = choice_NE.topk(plan.chosen, dim=-1).indices
    # from the scores themselves: a small one is lost when a bias is added and taken off again
    weights_NK = scores_NE.gather(-1, ids_NK)
    if plan.normalise:
        weights_NK = weights_NK / (weights_NK.sum(-1, keepdim=True) + 1e-20)
    return ids_NK, weights_NK if plan.scale == 1 else weights_NK * plan.scale


def _within_best_groups(choice_NE: Tensor, plan: RouterPlan) -> Tensor:
    # V2's code puts 0 where -inf stands: the same for scores of a softmax, of which none is negative
    choice_NGX = choice_NE.unflatten(-1, (plan.groups, -1))
    counted = 1 if plan.group_score == "max" else 2
    group_NG = choice_NGX.topk(counted, dim=-1).values.sum(-1)
    best = group_NG.topk(plan.groups_chosen, dim=-1).indices
    passed_over_NG = torch.ones_like(group_NG, dtype=torch.bool).scatter(-1, best, False)
    return choice_NGX.masked_fill(passed_over_NG[..., None], -torch.inf).flatten(-2)
