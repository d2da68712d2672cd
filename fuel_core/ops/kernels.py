"""Which of fuel's own kernels can run: they are Triton's, for CUDA.

A step of one token is hundreds of small operations, and on a GPU each takes about two microseconds
however little it does. So the operations between two matrix products are fused, where nobody asks for
gradients; where torch.compile traces, it fuses by itself.
"""

from importlib.util import find_spec

import torch
from torch import Tensor

from fuel_core.plans.cache_spec import KVSlots, Slots
from fuel_core.plans.model_plan import LatentAttentionPlan, Numerics

HAS_TRITON = find_spec("triton") is not None

KERNEL_DTYPES = (torch.float32, torch.float16, torch.bfloat16)

WIDEST_HEAD, WIDEST_LATENT = 256, 512
"""Of what the kernels of cached attention hold in registers."""


def follows_length(mixer: object, slots: Slots, numerics: Numerics, device: torch.device) -> bool:
    """Whether a layer's attention of one token costs what rows hold, not what they can hold.

    Args:
        mixer: the plan of what attends.
        slots: what the layer caches.
    """
    if device.type != "cuda":
        return device.type == "cpu"
    if isinstance(mixer, LatentAttentionPlan) and not mixer.absorbs(1):
        return False
    fits = slots.head_dim <= WIDEST_HEAD if isinstance(slots, KVSlots) else slots.rank <= WIDEST_LATENT
    dtypes = {numerics.activations, numerics.cache}
    return HAS_TRITON and fits and dtypes <= set(KERNEL_DTYPES)


def fuses(x: Tensor) -> bool:
    """Whether the small operations on ``x`` are to run as one kernel."""
    return (
        x.is_cuda
        and HAS_TRITON
        and x.dtype in KERNEL_DTYPES
        and x.stride(-1) == 1
        and not torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
    )
