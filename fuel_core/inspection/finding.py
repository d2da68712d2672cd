"""What one check of ``fuel doctor`` found, and how a check that fails is survived. Imports no torch."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Status = Literal["ok", "failed", "skipped"]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Something that is broken, and what the user can do."""

    cause: str
    remedy: str


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The outcome of one check.

    Attributes:
        name: what was checked.
        facts: what was found, in values that JSON has.
        problems: what is broken.
        notes: what works, but perhaps not as the user wishes.
        skipped: why nothing was checked; None where something was.
    """

    name: str
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()
    skipped: str | None = None

    @property
    def status(self) -> Status:
        if self.skipped is not None:
            return "skipped"
        return "failed" if self.problems else "ok"

    def as_dict(self) -> dict[str, Any]:
        """For JSON: ``name``, ``status``, ``facts``, ``problems`` (``cause``, ``remedy``), ``notes``,
        ``skipped``."""
        return {
            "name": self.name,
            "status": self.status,
            "facts": dict(self.facts),
            "problems": [dataclasses.asdict(problem) for problem in self.problems],
            "notes": list(self.notes),
            "skipped": self.skipped,
        }


def survived(name: str, check: Callable[[], Finding], *, remedy: str) -> Finding:
    """The finding of a check, or one that says how the check itself broke."""
    try:
        return check()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a plugin may call sys.exit(), and a Rust extension may panic
        text = " ".join(str(error).split())
        problem = Problem(cause=f"{type(error).__name__}: {text}", remedy=remedy)
        return Finding(name=name, problems=(problem,))
