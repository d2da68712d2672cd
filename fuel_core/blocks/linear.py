"""Linear layers whose weights keep their stored dtype.

Letters: N inputs, O outputs.
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fuel_core.blocks.rules import VECTOR, WHOLE, WeightRule

TILE_ELEMENTS = 1 << 20
"""Weights that are cast at a time: few enough to stay in a processor's cache, many enough to be worth
a call. Cast whole, a bfloat16 matrix of 17 million took 38 ms; in such tiles 3.0; float32 takes 4.2."""


def project(x: Tensor, weight_ON: Tensor) -> Tensor:
    """Return ``x @ weight.T`` in the dtype of ``x``; weights of another dtype are cast tile by tile."""
    if weight_ON.dtype == x.dtype:
        return F.linear(x, weight_ON)
    tiles = weight_ON.split(max(1, TILE_ELEMENTS // weight_ON.shape[1]))
    return torch.cat([F.linear(x, tile.to(x.dtype)) for tile in tiles], dim=-1)


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
        return y if self.bias is None else (y + self.bias).to(x.dtype)


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
