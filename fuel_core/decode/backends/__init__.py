"""How a planned step is run. Backends differ in plan, bind and replay, and in nothing else."""

import torch

from fuel_core.decode.backends.compiled import CompiledBackend
from fuel_core.decode.backends.contract import Backend, HeldStep
from fuel_core.decode.backends.cudagraph import CudaGraphBackend
from fuel_core.decode.backends.eager import EagerBackend
from fuel_core.errors import RequestError

__all__ = [
    "Backend",
    "CompiledBackend",
    "CudaGraphBackend",
    "EagerBackend",
    "HeldStep",
    "backend_named",
    "default_backend",
]


def backend_named(name: str) -> Backend:
    """Return the backend of a name.

    Raises:
        RequestError: there is none of this name.
    """
    backends: dict[str, type[Backend]] = {
        "eager": EagerBackend,
        "compiled": CompiledBackend,
        "cudagraph": CudaGraphBackend,
    }
    if name not in backends:
        raise RequestError(f"backend {name!r} is unknown; known are {', '.join(backends)}")
    return backends[name]()


def default_backend(device: torch.device) -> Backend:
    """What a device is served by unless one is asked for: ``cudagraph`` on CUDA, elsewhere ``eager``."""
    return CudaGraphBackend() if device.type == "cuda" else EagerBackend()
