"""Linear layers whose weights keep their stored dtype.

Letters: N inputs, O outputs.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fuel_core.blocks.rules import VECTOR, WHOLE, WeightRule
from fuel_core.ops import project


class Linear(nn.Module):
    """``x @ weight.T + bias``; the bias is added in at least float32."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None

    @property
    def weight_rules(self) -> Mapping[str, WeightRule]:
        return {"weight": WHOLE, "bias": VECTOR}

    def forward(self, x: Tensor) -> Tensor:
        y = project(x, self.weight)
        if self.bias is None:
            return y
        if torch.is_grad_enabled():
            return (y + self.bias).to(x.dtype)
        return y.add_(self.bias)  # one operation: it sums in the wider dtype and rounds once


class FusedLinear(Linear):
    """Several linear layers of one input as one: ``parts`` names their outputs, in order."""

    def __init__(self, inputs: int, parts: Mapping[str, int], *, bias: bool) -> None:
        super().__init__(inputs, sum(parts.values()), bias=bias)
        self.parts = dict(parts)

    @property
    def weight_rules(self) -> Mapping[str, WeightRule]:
        return {
            "weight": WeightRule(self.parts, full_precision=False),
            "bias": WeightRule(self.parts, full_precision=True),
        }
