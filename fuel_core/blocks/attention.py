"""Grouped-query attention.

Letters: B rows, T new tokens, M model width, H query heads, G key/value heads, D head dim.
"""

import torch
from torch import Tensor, nn

from fuel_core.blocks.linear import FusedLinear, Linear
from fuel_core.blocks.norm import normalisation
from fuel_core.plans.model_plan import AttentionPlan
from fuel_core.step import LayerStep


class Attention(nn.Module):
    """Project to q, k and v at once, normalise q and k if planned, rotate, attend, project back."""

    def __init__(self, hidden_size: int, plan: AttentionPlan) -> None:
        super().__init__()
        self.plan = plan
        query_width, kv_width = plan.query_heads * plan.head_dim, plan.kv_heads * plan.head_dim
        self.qkv = FusedLinear(
            hidden_size, {"q": query_width, "k": kv_width, "v": kv_width}, bias=plan.qkv_bias
        )
        self.out = Linear(query_width, hidden_size, bias=plan.out_bias)
        self.q_norm = None if plan.qk_norm is None else normalisation(plan.head_dim, plan.qk_norm)
        self.k_norm = None if plan.qk_norm is None else normalisation(plan.head_dim, plan.qk_norm)

    def forward(self, x_BTM: Tensor, step: LayerStep) -> Tensor:
        plan = self.plan
        heads = self.qkv(x_BTM).unflatten(-1, (-1, plan.head_dim))
        qk, v = heads.split((plan.query_heads + plan.kv_heads, plan.kv_heads), dim=2)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = qk.split((plan.query_heads, plan.kv_heads), dim=2)
            qk = torch.cat((self.q_norm(q), self.k_norm(k)), dim=2)
        q, k = step.rope(qk).split((plan.query_heads, plan.kv_heads), dim=2)
        out_BTHD: Tensor = step.attend(q, k, v, scale=plan.scale)
        projected: Tensor = self.out(out_BTHD.flatten(2))
        return projected
