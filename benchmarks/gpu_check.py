"""A named check, what it found, and how it went: a failure is reported and the next check runs."""

import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import Any

from torch import Tensor


@dataclass
class Findings:
    """What a check found.

    Attributes:
        numbers: by name, whatever is worth reading when it fails or passes.
        faults: each a sentence; none is a pass.
    """

    numbers: dict[str, Any] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def note(self, name: str, value: Any) -> None:
        self.numbers[name] = value

    def require(self, holds: bool, fault: str) -> None:
        if not holds:
            self.faults.append(fault)

    def within(self, name: str, value: float, bound: float) -> None:
        """Note a number and require that it is at most ``bound``; NaN is not."""
        self.note(name, value)
        self.require(value <= bound, f"{name} is {value:.3g}, at most {bound:.3g} is allowed")

    def equal(self, name: str, value: Any, wanted: Any) -> None:
        self.note(name, value)
        self.require(value == wanted, f"{name} is {value}, expected {wanted}")


@dataclass(frozen=True, kw_only=True)
class Check:
    """Attributes:
    expected_s: an estimate of how long it takes, kernels compiled on the way.
    """

    name: str
    run: Callable[[Findings], None]
    expected_s: float


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a check went, with its seconds."""

    name: str
    seconds: float
    numbers: dict[str, Any]
    faults: list[str]

    @property
    def passed(self) -> bool:
        return not self.faults

    @property
    def line(self) -> str:
        """For people: the verdict, the numbers, and the faults below."""
        numbers = ", ".join(
            f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in self.numbers.items()
        )
        verdict = "PASS" if self.passed else "FAIL"
        head = f"{verdict} {self.seconds:6.1f} s  {self.name}" + (f": {numbers}" if numbers else "")
        return "\n".join([head, *(f"            {fault}" for fault in self.faults)])

    def record(self) -> dict[str, Any]:
        return {"passed": self.passed, **asdict(self)}


def perform(check: Check) -> Outcome:
    """Run a check. What it raises is a fault that names the place."""
    findings, start = Findings(), perf_counter()
    try:
        check.run(findings)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        findings.faults.append(
            f"{type(error).__name__}: {error} (in {last.name}, {last.filename}:{last.lineno})"
        )
    seconds = perf_counter() - start
    return Outcome(name=check.name, seconds=seconds, numbers=findings.numbers, faults=findings.faults)


def relative_gap(found: Tensor, wanted: Tensor) -> float:
    """The largest difference to the largest value wanted; NaN is no small number."""
    difference = (found.double().cpu() - wanted.double().cpu()).abs().max()
    worst = (difference / wanted.double().cpu().abs().max()).item()
    return worst if worst == worst else float("inf")
