"""Routing by SparseMixer: the best expert, then the next best, each weighed against those near to it alone.

Letters: N tokens, M model width, E experts.

Source: GRIN (arXiv:2409.12136), section 2; at inference the draw among the near experts is their best.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fuel_core.blocks import WeightRule
from fuel_core.errors import PlanError


@dataclass(frozen=True, kw_only=True)
class SparseMixerPlan:
    """Two of ``experts``; near are logits within ``2 * eps`` of the best, relative to the larger size.

    Raises:
        PlanError: fewer than two experts.
    """

    experts: int
    eps: float

    def __post_init__(self) -> None:
        if self.experts < 2:
            raise PlanError(f"SparseMixer chooses two experts, and there is only {self.experts}")

    @property
    def chosen(self) -> int:
        return 2

    def __str__(self) -> str:
        return f"2 of {self.experts}, sparsemixer with eps {self.eps:g}"


class SparseMixer(nn.Module):
    """Two experts a token and their weights, which do not sum to 1: each is a share among its neighbours."""

    def __init__(self, hidden_size: int, plan: SparseMixerPlan) -> None:
        super().__init__()
        self.plan = plan
        self.weight = nn.Parameter(torch.empty(plan.experts, hidden_size))

    @property
    def weight_rules(self) -> Mapping[str, WeightRule]:
        return {"weight": WeightRule({}, full_precision=True)}

    def forward(self, x_NM: Tensor) -> tuple[Tensor, Tensor]:
        """Return ids ``[N, 2]`` in int64 and weights ``[N, 2]`` in at least float32."""
        logits_NE = F.linear(x_NM.to(self.weight.dtype), self.weight)
        first = self._best(logits_NE)
        second = self._best(logits_NE.scatter(-1, first[0], -torch.inf))
        ids, weights = zip(first, second, strict=True)
        return torch.cat(ids, dim=-1), torch.cat(weights, dim=-1)

    def _best(self, logits_NE: Tensor) -> tuple[Tensor, Tensor]:
        """The best expert ``[N, 1]`` and its share in a softmax over those near to it."""
        best_N1, ids_N1 = logits_NE.max(-1, keepdim=True)
        # NaN where an expert was taken out, and at two zeros: neither is far
        distance_NE = (best_N1 - logits_NE) / torch.maximum(logits_NE.abs(), best_N1)
        near_NE = logits_NE.masked_fill(distance_NE > 2 * self.plan.eps, -torch.inf)
        return ids_N1, near_NE.softmax(-1).gather(-1, ids_N1)
