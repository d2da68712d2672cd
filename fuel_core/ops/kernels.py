"""Which of fuel's own kernels can run: they are Triton's, for CUDA.

A step of one token is hundreds of small operations, and on a GPU each takes about two microseconds
however little it does. So the operations between two matrix products are fused, where nobody asks for
gradients; where torch.compile traces, it fuses by itself.
"""

from importlib.util import find_spec

import torch
from torch import Tensor

HAS_TRITON = find_spec("triton") is not None

KERNEL_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


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
