"""Choosing experts for each token.

Letters: N tokens, M model width, E experts, K chosen for a token.
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fuel_core.blocks.rules import WeightRule
from fuel_core.ops.routing import route
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
        logits_NE = F.linear(x_NM.to(self.weight.dtype), self.weight)
        return route(logits_NE, self.e_score_correction_bias, self.plan)
