"""Feed-forward blocks of routed and shared experts.

Letters: N tokens, M model width, E experts, K chosen for a token, O outputs.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fuel_core.blocks.linear import Linear
from fuel_core.blocks.mlp import GatedMLP
from fuel_core.blocks.router import Router
from fuel_core.blocks.rules import WeightRule
from fuel_core.ops import apply_experts, at_least_float32
from fuel_core.plans.moe_plan import MoEPlan, RouterPlan


class StackedLinear(nn.Module):
    """The matrices of one projection of all experts, ``[E, O, M]``; ``parts`` names the rows of each."""

    def __init__(self, experts: int, inputs: int, outputs: int, parts: Mapping[str, int]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, outputs, inputs))
        self.parts = dict(parts)

    @property
    def weight_rules(self) -> Mapping[str, WeightRule]:
        return {"weight": WeightRule(self.parts, full_precision=False, experts=self.weight.shape[0])}


class Experts(nn.Module):
    """Gated MLPs side by side, each token through those chosen for it."""

    def __init__(self, hidden_size: int, plan: MoEPlan) -> None:
        super().__init__()
        count, width = plan.router.experts, plan.expert_width
        self.gate_up = StackedLinear(count, hidden_size, 2 * width, {"gate": width, "up": width})
        self.down = StackedLinear(count, width, hidden_size, {})
        self.activation = plan.activation

    def forward(self, x_NM: Tensor, ids_NK: Tensor, weights_NK: Tensor) -> Tensor:
        return apply_experts(x_NM, self.gate_up.weight, self.down.weight, ids_NK, weights_NK, self.activation)


class MoE(nn.Module):
    """Routed experts, plus the shared ones if there are any.

    Args:
        router: maps ``[N, M]`` to ids ``[N, K]`` in int64 and weights ``[N, K]`` in at least float32.
    """

    def __init__(self, hidden_size: int, plan: MoEPlan, router: nn.Module) -> None:
        super().__init__()
        self.router = router
        self.experts = Experts(hidden_size, plan)
        self.shared = None if plan.shared is None else GatedMLP(hidden_size, plan.shared)
        self.shared_gate = Linear(hidden_size, 1, bias=False) if plan.shared_gate else None

    def forward(self, x: Tensor) -> Tensor:
        x_NM = x.flatten(0, -2)
        ids_NK, weights_NK = self.router(x_NM)
        routed: Tensor = self.experts(x_NM, ids_NK, weights_NK).view(x.shape)
        if self.shared is None:
            return routed
        shared: Tensor = self.shared(x)
        if self.shared_gate is not None:
            shared = (shared * torch.sigmoid(at_least_float32(self.shared_gate(x)))).to(x.dtype)
        return routed + shared


def moe(hidden_size: int, plan: MoEPlan) -> MoE:
    """The block of a plan that routes by the core's own recipe."""
    assert isinstance(plan.router, RouterPlan), f"{type(plan.router).__name__} needs its family's router"
    return MoE(hidden_size, plan, Router(hidden_size, plan.router))
