"""Which of fuel's own kernels can run: they are Triton's, for CUDA.

A step of one token is hundreds of small operations, and on a GPU each is a launch, however little it does.
So the operations between two matrix products are fused, where nobody asks for gradients; where
torch.compile traces, it fuses by itself.
"""

import warnings
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from fuel_core.errors import FuelWarning
from fuel_core.plans.cache_spec import KVSlots, Slots
from fuel_core.plans.model_plan import LatentAttentionPlan, Numerics

KERNEL_DTYPES = (torch.float32, torch.float16, torch.bfloat16)

WIDEST_HEAD, WIDEST_LATENT = 256, 512
"""Of what the kernels of cached attention hold in registers."""

LATENT_FLOAT32_BYTES = 110_592
"""Of shared memory, which the float32 kernel of latent attention takes at K = 512 and R = 64 (triton 3.7)."""


@cache
def triton_runs() -> bool:
    """Whether Triton is installed and can launch kernels; says once why not.

    It builds a part of itself on first use, with a C compiler and Python's headers.
    """
    if find_spec("triton") is None:
        return False
    import triton

    if triton.knobs.runtime.interpret:
        return True
    try:
        triton.runtime.driver.active.get_current_device()
    except Exception as error:
        warnings.warn(
            f"Triton is installed and cannot run: {type(error).__name__}: {error}. It needs a C compiler and "
            "Python's headers. fuel uses torch's own operations instead: slower, with the same results",
            FuelWarning,
            stacklevel=2,
        )
        return False
    return True


@cache
def shared_memory_bytes(device: torch.device) -> int:
    """What one program of a kernel may use on a CUDA device."""
    properties = torch.cuda.get_device_properties(device)
    # torch's stubs lack it, and AMD's devices have one limit only
    return getattr(properties, "shared_memory_per_block_optin", properties.shared_memory_per_block)


def knows_dtypes(activations: torch.dtype, cache: torch.dtype) -> bool:
    """Whether the kernels of cached attention can run, and know these."""
    return activations in KERNEL_DTYPES and cache in KERNEL_DTYPES and triton_runs()


def knows_latent(rank: int, activations: torch.dtype, cache: torch.dtype, device: torch.device) -> bool:
    """Whether the kernel of latent attention can serve."""
    if rank > WIDEST_LATENT or not knows_dtypes(activations, cache):
        return False
    wide = torch.float32 in (activations, cache)
    return not wide or shared_memory_bytes(device) >= LATENT_FLOAT32_BYTES


def knows_heads(head_dim: int, activations: torch.dtype, cache: torch.dtype) -> bool:
    """Whether the kernel of attention over keys and values can serve."""
    return head_dim <= WIDEST_HEAD and knows_dtypes(activations, cache)


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
    if isinstance(slots, KVSlots):
        return knows_heads(slots.head_dim, numerics.activations, numerics.cache)
    return knows_latent(slots.rank, numerics.activations, numerics.cache, device)


def fuses(x: Tensor) -> bool:
    """Whether the small operations on ``x`` are to run as one kernel."""
    return (
        x.is_cuda
        and not torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and x.dtype in KERNEL_DTYPES
        and x.stride(-1) == 1
        and triton_runs()
    )
