"""Feed-forward blocks."""

from torch import Tensor, nn

from fuel_core.blocks.activation import activation
from fuel_core.blocks.linear import FusedLinear, Linear
from fuel_core.ops import gated
from fuel_core.plans.model_plan import GatedMLPPlan, MLPPlan


class GatedMLP(nn.Module):
    """``down(activation(gate(x)) * up(x))``, gate and up in one projection (arXiv:2002.05202)."""

    def __init__(self, hidden_size: int, plan: GatedMLPPlan) -> None:
        super().__init__()
        self.gate_up = FusedLinear(hidden_size, {"gate": plan.width, "up": plan.width}, bias=plan.bias)
        self.down = Linear(plan.width, hidden_size, bias=plan.bias)
        self.activation = plan.activation

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(gated(self.gate_up(x), self.activation))
        return y


class MLP(nn.Module):
    """``down(activation(up(x)))``."""

    def __init__(self, hidden_size: int, plan: MLPPlan) -> None:
        super().__init__()
        self.up = Linear(hidden_size, plan.width, bias=plan.bias)
        self.down = Linear(plan.width, hidden_size, bias=plan.bias)
        self.activation = activation(plan.activation)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(self.activation(self.up(x)))
        return y
