"""Planned decoding: the session, the ladder and the backends."""

from fuel_core.decode.backends import (
    Backend,
    CompiledBackend,
    CudaGraphBackend,
    EagerBackend,
    HeldStep,
    backend_named,
    default_backend,
)
from fuel_core.decode.counters import Counters, PhaseTimes
from fuel_core.decode.session import PREFILL_CHUNK_TOKENS, DecodeSession
from fuel_core.decode.token_choice import RowChoice

__all__ = [
    "PREFILL_CHUNK_TOKENS",
    "Backend",
    "CompiledBackend",
    "Counters",
    "CudaGraphBackend",
    "DecodeSession",
    "EagerBackend",
    "HeldStep",
    "PhaseTimes",
    "RowChoice",
    "backend_named",
    "default_backend",
]
