"""The gate of a gated feed-forward block (arXiv:2002.05202)."""

import torch
from torch import Tensor

from fuel_core.ops.activation import activation
from fuel_core.ops.kernels import fuses
from fuel_core.plans.model_plan import ActivationName


def gated(gate_up: Tensor, name: ActivationName) -> Tensor:
    """``activation(gate) * up`` of ``[..., 2I]``, the gate's columns first: ``[..., I]``."""
    if fuses(gate_up):
        from fuel_core.ops.triton.gate import gated as fused

        with torch.cuda.device_of(gate_up):
            return fused(gate_up, name)
    gate, up = gate_up.chunk(2, dim=-1)
    return activation(name)(gate) * up
