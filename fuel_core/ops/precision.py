"""The least precision of norms, softmax and logits."""

import torch
from torch import Tensor


def at_least_float32(x: Tensor) -> Tensor:
    """Widen half precision to float32; leave float32 and float64 alone."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()
