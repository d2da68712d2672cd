"""What a session has done and where its time went."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter

from fuel_core.decode.backends import HeldStep


@dataclass
class Counters:
    """Counts since a session was made.

    Attributes:
        plans: steps planned; one a batch size, for any number of tokens, is the promise.
        captures: graphs captured: one a plan where the backend captures, and one more where a plan
            first serves rows of another pool, or first chooses tokens in a way of its own.
        replays: steps served by a held plan, the planned one included.
        rebinds: times that a held plan was bound to another pool or decoder.
        copies: buffers that binding had to copy.
        drops: plans given up because they no longer fitted.
        fallbacks: steps of one token served without a plan.
        reprefills: rows whose keys were computed anew when they crossed a RoPE regime.
        discards: steps that were launched ahead and not asked for.
    """

    plans: int = 0
    captures: int = 0
    replays: int = 0
    rebinds: int = 0
    copies: int = 0
    drops: int = 0
    fallbacks: int = 0
    reprefills: int = 0
    discards: int = 0

    @contextmanager
    def counting_captures(self, step: HeldStep) -> Iterator[None]:
        """Count the graphs that a held step captures within."""
        before = step.captures
        try:
            yield
        finally:
            self.captures += step.captures - before


@dataclass
class PhaseTimes:
    """Seconds spent by a session, by phase."""

    prefill: float = 0.0
    plan: float = 0.0
    rebind: float = 0.0
    replay: float = 0.0
    sample: float = 0.0

    @contextmanager
    def measure(self, phase: str) -> Iterator[None]:
        start = perf_counter()
        try:
            yield
        finally:
            setattr(self, phase, getattr(self, phase) + perf_counter() - start)
