"""Planned decoding: the session, the ladder and the backends."""

from fuel_core.decode.backends import Backend, EagerBackend, HeldStep, backend_named
from fuel_core.decode.counters import Counters, PhaseTimes
from fuel_core.decode.session import PREFILL_CHUNK_TOKENS, DecodeSession

__all__ = [
    "PREFILL_CHUNK_TOKENS",
    "Backend",
    "Counters",
    "DecodeSession",
    "EagerBackend",
    "HeldStep",
    "PhaseTimes",
    "backend_named",
]
