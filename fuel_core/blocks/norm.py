"""Normalisation, in at least float32."""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from fuel_core.blocks.rules import VECTOR, WeightRule
from fuel_core.ops import add_rms_norm, at_least_float32, rms_norm
from fuel_core.plans.model_plan import NormPlan


class RMSNorm(nn.Module):
    """Root-mean-square normalisation over the last dimension (arXiv:1910.07467)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.eps = eps

    @property
    def weight_rules(self) -> Mapping[str, WeightRule]:
        return {"weight": VECTOR}

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


class LayerNorm(nn.Module):
    """Centred normalisation over the last dimension, with a bias (arXiv:1607.06450)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.bias = nn.Parameter(torch.empty(width))
        self.eps = eps

    @property
    def weight_rules(self) -> Mapping[str, WeightRule]:
        return {"weight": VECTOR, "bias": VECTOR}

    def forward(self, x: Tensor) -> Tensor:
        wide = at_least_float32(x)
        return F.layer_norm(wide, self.weight.shape, self.weight, self.bias, self.eps).to(x.dtype)


def normalisation(width: int, plan: NormPlan) -> nn.Module:
    """The normalisation that a plan describes, over ``width`` dimensions."""
    return RMSNorm(width, plan.eps) if plan.kind == "rms" else LayerNorm(width, plan.eps)


def sum_and_norm(norm: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """``x + y`` and its normalisation: a residual stream, and what the next block reads of it."""
    hooked = norm._forward_hooks or norm._forward_pre_hooks or _has_any_global_hook()
    if type(norm) is RMSNorm and not hooked:
        return add_rms_norm(x, y, norm.weight, norm.eps)
    total = x + y
    return total, norm(total)
