"""Root-mean-square normalisation, in at least float32 (arXiv:1910.07467)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from fuel_core.ops.kernels import fuses
from fuel_core.ops.precision import at_least_float32


def rms_norm(x: Tensor, weight_W: Tensor, eps: float) -> Tensor:
    """``x / rms(x) * weight`` over the last dimension, in the dtype of ``x``."""
    if fuses(x):
        from fuel_core.ops.triton.norm import rms_norm as fused

        with torch.cuda.device_of(x):
            return fused(x, weight_W, eps)
    return F.rms_norm(at_least_float32(x), weight_W.shape, weight_W, eps).to(x.dtype)


def add_rms_norm(x: Tensor, y: Tensor, weight_W: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """``x + y``, and :func:`rms_norm` of that sum."""
    if fuses(x) and fuses(y) and (x.shape, x.dtype) == (y.shape, y.dtype):
        from fuel_core.ops.triton.norm import add_rms_norm as fused

        with torch.cuda.device_of(x):
            return fused(x, y, weight_W, eps)
    total = x + y
    return total, rms_norm(total, weight_W, eps)
