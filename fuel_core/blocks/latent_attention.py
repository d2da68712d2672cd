"""Multi-head latent attention (MLA).

Letters: B rows, T new tokens, M model width, H heads, N unrotated and R rotated dims of a head, V value
dim, O = N + V, K latent rank.

Source: DeepSeek-V2 (arXiv:2405.04434), section 2.1; tensor layout of the published DeepSeek-V2 and V3.
"""

import torch
from torch import Tensor, nn

from fuel_core.blocks.linear import Linear
from fuel_core.blocks.norm import normalisation
from fuel_core.plans.model_plan import LatentAttentionPlan
from fuel_core.step import LayerStep


class LowRankLinear(nn.Module):
    """Down to a latent, normalise it, up again."""

    def __init__(self, hidden_size: int, outputs: int, rank: int, plan: LatentAttentionPlan) -> None:
        super().__init__()
        self.a = Linear(hidden_size, rank, bias=plan.bias)
        self.norm = normalisation(rank, plan.norm)
        self.b = Linear(rank, outputs, bias=False)

    def forward(self, x_BTM: Tensor) -> Tensor:
        y: Tensor = self.b(self.norm(self.a(x_BTM)))
        return y


class LatentAttention(nn.Module):
    """Cache one latent and one rotated key a token, whatever the number of heads.

    What is cached is the latent after its norm and the key after its rotation: both are functions of
    their own token alone.
    """

    def __init__(self, hidden_size: int, plan: LatentAttentionPlan) -> None:
        super().__init__()
        self.plan = plan
        query_width = plan.heads * (plan.nope_dim + plan.rope_dim)
        self.q: nn.Module = (
            Linear(hidden_size, query_width, bias=False)
            if plan.q_rank is None
            else LowRankLinear(hidden_size, query_width, plan.q_rank, plan)
        )
        self.kv_a = Linear(hidden_size, plan.kv_rank + plan.rope_dim, bias=plan.bias)
        self.kv_norm = normalisation(plan.kv_rank, plan.norm)
        self.kv_b = Linear(plan.kv_rank, plan.heads * (plan.nope_dim + plan.value_dim), bias=False)
        self.out = Linear(plan.heads * plan.value_dim, hidden_size, bias=plan.bias)

    def forward(self, x_BTM: Tensor, step: LayerStep) -> Tensor:
        plan = self.plan
        q = self.q(x_BTM).unflatten(-1, (plan.heads, -1))
        q_nope, q_pe = q.split((plan.nope_dim, plan.rope_dim), dim=-1)
        latent, k_pe = self.kv_a(x_BTM).split((plan.kv_rank, plan.rope_dim), dim=-1)
        turned = step.rope(torch.cat((q_pe, k_pe[:, :, None]), dim=2))
        q_pe, k_pe = turned.split((plan.heads, 1), dim=2)
        w_kv_HOK = self.kv_b.weight.unflatten(0, (plan.heads, -1))
        out_BTHV = step.attend_latent(q_nope, q_pe, self.kv_norm(latent), k_pe[:, :, 0], w_kv_HOK, plan)
        projected: Tensor = self.out(out_BTHV.flatten(2))
        return projected
