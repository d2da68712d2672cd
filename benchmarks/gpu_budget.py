"""The seconds that a run may take: nothing is started that would not end in time."""

from collections.abc import Callable
from time import perf_counter


class Budget:
    """Counts from when it is made.

    Attributes:
        skipped: what was not started, in order, each with the reason.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = perf_counter) -> None:
        self.seconds = seconds
        self.skipped: list[str] = []
        self._clock, self._start = clock, clock()

    @property
    def spent(self) -> float:
        return self._clock() - self._start

    def allows(self, name: str, expected_s: float) -> bool:
        """Whether ``name`` may start; if not, it is noted as skipped."""
        if self.spent + expected_s <= self.seconds:
            return True
        self.skip(name, f"about {expected_s:.0f} s of the {self.seconds:.0f} s, {self.spent:.0f} s are spent")
        return False

    def skip(self, name: str, why: str) -> None:
        self.skipped.append(f"{name}: {why}")
