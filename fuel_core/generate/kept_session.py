"""The session of a run, kept for the next one: capturing a step takes as long as many tokens."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from weakref import ref

from torch import nn
from torch.nn.modules import module as torch_module

from fuel_core.blocks.decoder import Decoder
from fuel_core.decode import Backend, DecodeSession

LEAST_CAPACITY = 1024
"""Tokens of a row, at least, in a session that may be kept: most requests differ in length by less."""


_GLOBAL_HOOKS = torch_module._global_forward_pre_hooks, torch_module._global_forward_hooks


def _hooks(module: nn.Module) -> tuple[Iterable[int], ...]:
    """The numbers of its hooks: torch gives none twice."""
    return module._forward_pre_hooks, module._forward_hooks


@dataclass(frozen=True)
class ModelState:
    """What a captured step has of a model: where its numbers lie, and whose code ran.

    A graph goes on reading parameters that were replaced, and runs the hooks that it was captured with.
    """

    epoch: int
    addresses: tuple[int, ...]
    modules: tuple[ref[nn.Module], ...]
    hooks: tuple[int, ...]
    forwards: tuple[object, ...]

    @classmethod
    def of(cls, decoder: Decoder) -> "ModelState":
        modules = tuple(decoder.modules())
        return cls(
            decoder.weights.epoch,
            tuple(parameter.data_ptr() for parameter in decoder.parameters()),
            tuple(ref(module) for module in modules),
            tuple(chain(*_GLOBAL_HOOKS, *(hooks for module in modules for hooks in _hooks(module)))),
            tuple(vars(module).get("forward") for module in modules),
        )


@dataclass(frozen=True, kw_only=True)
class SessionRequest:
    """What a run asks of a session.

    Attributes:
        backend: its name, or the one that a caller gave.
    """

    rows: int
    capacity: int
    backend: str | Backend
    strict: bool


class KeptSession:
    """At most one session whose steps are captured. Threads may share it: one of them gets the session."""

    def __init__(self) -> None:
        self._kept: deque[tuple[DecodeSession, SessionRequest, ModelState]] = deque(maxlen=1)

    def take(self, request: SessionRequest, state: ModelState) -> DecodeSession | None:
        """The kept session if it can serve; if it cannot, it is given up, and its memory is free."""
        try:
            session, made_for, at_that_time = self._kept.pop()
        except IndexError:
            return None
        fits = (
            at_that_time == state
            and made_for.rows == request.rows
            and made_for.backend == request.backend
            and made_for.strict == request.strict
            and session.pool.capacity >= request.capacity
        )
        return session if fits else None

    def give(self, session: DecodeSession, request: SessionRequest, state: ModelState) -> None:
        """Keep a session that a run has done with, if its steps are captured and no other one is kept.

        Args:
            state: of the model when the run began.
        """
        if session.captured and not self._kept:
            self._kept.append((session, request, state))

    def clear(self) -> None:
        self._kept.clear()


def roomy(capacity: int, limit: int) -> int:
    """The capacity of a session that may be kept, for a request of so many tokens: an eighth more at most."""
    step = max(LEAST_CAPACITY, (1 << capacity.bit_length()) // 16)
    return min(limit, -(-capacity // step) * step)
