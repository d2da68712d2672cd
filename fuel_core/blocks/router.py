"""Choosing experts for each token.

Letters: N tokens, M model width, E experts, K chosen for a token, G groups.

Sources: arXiv:2405.04434 section 2.2 (groups by their best expert), arXiv:2412.19437 section 2.1.2 (sigmoid
scores, a bias that only chooses, groups by their best two).
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fuel_core.blocks.rules import WeightRule
from fuel_core.plans.moe_plan import RouterPlan


class Router(nn.Module):
    """Experts and their weights for each token, in at least float32 throughout."""

    def __init__(self, hidden_size: int, plan: RouterPlan) -> None:
        super().__init__()
        self.plan = plan
        self.weight = nn.Parameter(torch.empty(plan.experts, hidden_size))
        self.e_score_correction_bias = (
            nn.Parameter(torch.empty(plan.experts)) if plan.correction_bias else None
        )

    @property
    def weight_rules(self) -> Mapping[str, WeightRule]:
        return {
            "weight": WeightRule({}, full_precision=True),
            "e_score_correction_bias": WeightRule({}, full_precision=True, trained=False),
        }

    def forward(self, x_NM: Tensor) -> tuple[Tensor, Tensor]:
        """Return ids ``[N, K]`` in int64 and weights ``[N, K]`` in at least float32."""
        plan = self.plan
        logits_NE = F.linear(x_NM.to(self.weight.dtype), self.weight)
        scores_NE = logits_NE.softmax(-1) if plan.scoring == "softmax" else logits_NE.sigmoid()
        choice_NE = scores_NE
        if self.e_score_correction_bias is not None:
            choice_NE = choice_NE + self.e_score_correction_bias
        if plan.limited:
            choice_NE = self._within_best_groups(choice_NE)
        ids_NK = choice_NE.topk(plan.chosen, dim=-1).indices
        # from the scores themselves: a small one is lost when a bias is added and taken off again
        weights_NK = scores_NE.gather(-1, ids_NK)
        if plan.normalise:
            weights_NK = weights_NK / (weights_NK.sum(-1, keepdim=True) + 1e-20)
        return ids_NK, weights_NK if plan.scale == 1 else weights_NK * plan.scale

    def _within_best_groups(self, choice_NE: Tensor) -> Tensor:
        # V2's code puts 0 where -inf stands: the same for scores of a softmax, of which none is negative
        choice_NGX = choice_NE.unflatten(-1, (self.plan.groups, -1))
        if self.plan.group_score == "max":
            group_NG = choice_NGX.amax(-1)
        else:
            group_NG = choice_NGX.topk(2, dim=-1).values.sum(-1)
        best = group_NG.topk(self.plan.groups_chosen, dim=-1).indices
        passed_over_NG = torch.ones_like(group_NG, dtype=torch.bool).scatter(-1, best, False)
        return choice_NGX.masked_fill(passed_over_NG[..., None], -torch.inf).flatten(-2)
