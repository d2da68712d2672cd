"""What a run leaves: a JSON file with every raw number, a picture, and a table for the end of the output."""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import torch
from gpu_check import Outcome
from gpu_speed import HOST_TARGET_US, Row, long_context

JSON_NAME, PNG_NAME = "gpu.json", "gpu.png"


@dataclass
class Report:
    """A run so far.

    Attributes:
        machine: what its figures depend on.
        comparisons: fuel beside transformers, one a model.
        errors: measurements that failed, by name.
        skipped: what was not started, with the reason; the budget's own list.
    """

    machine: Mapping[str, Any]
    skipped: list[str]
    outcomes: list[Outcome] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    comparisons: list[dict[str, Any]] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        return bool(self.errors) or not all(outcome.passed for outcome in self.outcomes)

    def record(self) -> dict[str, Any]:
        return {
            "machine": dict(self.machine),
            "failed": self.failed,
            "checks": [outcome.record() for outcome in self.outcomes],
            "rows": [row.record() for row in self.rows],
            "long_context": long_context(self.rows),
            "comparisons": self.comparisons,
            "errors": self.errors,
            "skipped": self.skipped,
        }

    def write(self, folder: Path) -> None:
        """Write the JSON; called after each measurement, so that a run that is killed leaves what it has."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / JSON_NAME).write_text(json.dumps(self.record(), indent=1) + "\n")

    def draw(self, folder: Path) -> bool:
        """Write the picture; False where matplotlib is missing or nothing was measured."""
        if not self.rows or find_spec("matplotlib") is None:
            return False
        draw_shares(self.rows, str(self.machine["device"]), folder / PNG_NAME)
        return True

    def lines(self) -> list[str]:
        """For people, the table last."""
        lines = [f"failed: {name}: {error}" for name, error in self.errors.items()]
        lines += [f"skipped: {each}" for each in self.skipped]
        if self.outcomes:
            passed = sum(outcome.passed for outcome in self.outcomes)
            lines.append(f"checks: {passed} of {len(self.outcomes)} passed")
            lines += [f"  FAIL {outcome.name}" for outcome in self.outcomes if not outcome.passed]
        lines += [
            f"{each['context']} against its bytes: {each['model']}, {each['backend']}: "
            f"{each['times_explained']:.2f} times the time that they explain "
            f"({_verdict(each['times_explained'] <= each['target'])}: at most {each['target']:.2f})"
            for each in long_context(self.rows)
        ]
        lines += [comparison_line(each) for each in self.comparisons]
        return [*lines, *table(self.rows)]


def comparison(model: str, seconds: Mapping[str, Sequence[float]], tokens: int) -> dict[str, Any]:
    """transformers' seconds of each run to each backend's."""
    theirs = seconds["transformers"]
    return {
        "model": model,
        "tokens": tokens,
        "seconds": {name: list(values) for name, values in seconds.items()},
        "tokens_per_s": {name: tokens / median(values) for name, values in seconds.items()},
        "times_as_fast": {
            name: median(a / b for a, b in zip(theirs, values, strict=True))
            for name, values in seconds.items()
            if name != "transformers"
        },
    }


def comparison_line(each: Mapping[str, Any]) -> str:
    """The verdict is that of the best backend."""
    ratios: Mapping[str, float] = each["times_as_fast"]
    ours = ", ".join(f"{name} {ratio:.2f} times as fast" for name, ratio in ratios.items())
    ahead = _verdict(max(ratios.values()) > 1)
    speed = each["tokens_per_s"]["transformers"]
    return f"beside transformers, compiled ({speed:.0f} tokens/s): {each['model']}: {ours} ({ahead}: ahead)"


def table(rows: Sequence[Row]) -> list[str]:
    """One line a backend and context; shares are of the copies in the same rounds."""
    if not rows:
        return []
    header = (
        f"{'model':17} {'context':>7} {'backend':10} {'tokens/s':>9} {'GB/s':>6} {'share':>6} "
        f"{'replay':>6} {'host us':>8} {'captures':>8}  target"
    )
    return [header, *(_line(row) for row in rows)]


def _line(row: Row) -> str:
    replay = f"{row.replay_share:6.1%}" if row.replay_share is not None else f"{'':6}"
    captures = f"{row.captures - row.later_captures}+{row.later_captures}"
    return (
        f"{row.model:17} {row.context:>7} {row.backend:10} {row.tokens_per_s:9.1f} {row.gb_per_s:6.0f} "
        f"{row.share:6.1%} {replay} {row.host_us:8.1f} {captures:>8}  {_targets(row)}"
    ).rstrip()


def _targets(row: Row) -> str:
    if row.fell_back:
        return f"ran eagerly: {row.fell_back[0]}"
    if row.backend == "eager":
        return ""
    parts = []
    if row.target is not None:
        parts.append(f"share {row.target:.0%} {_verdict(row.share >= row.target)}")
    parts.append(f"host {HOST_TARGET_US:.0f} us {_verdict(row.host_us < HOST_TARGET_US)}")
    return ", ".join(parts)


def _verdict(met: bool) -> str:
    return "met" if met else "missed"


def draw_shares(rows: Sequence[Row], machine: str, path: Path) -> None:
    """Bars of the share of copy bandwidth, a group a model and context, targets as marks."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    places = list(dict.fromkeys((row.model, row.context) for row in rows))
    backends = list(dict.fromkeys(row.backend for row in rows))
    figure, axes = pyplot.subplots(figsize=(max(6, 0.9 * len(places)), 4.5), layout="constrained")
    width = 0.8 / len(backends)
    for index, backend in enumerate(backends):
        own = [row for row in rows if row.backend == backend]
        where = [places.index((row.model, row.context)) + (index + 0.5) * width - 0.4 for row in own]
        axes.bar(where, [100 * row.share for row in own], width, label=backend)
    marks = {(row.model, row.context): row.target for row in rows if row.target is not None}
    for place, target in marks.items():
        middle = places.index(place)
        axes.hlines(100 * target, middle - 0.45, middle + 0.45, colors="black", linestyles="dashed")
    axes.set_xticks(range(len(places)), [f"{model}\n{context}" for model, context in places], fontsize=7)
    axes.set_ylabel("share of copy bandwidth, %")
    axes.set_title(f"{machine}: decode, batch 1, bfloat16 (dashed: target)", fontsize=9)
    axes.legend()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def machine(device: torch.device) -> dict[str, Any]:
    """What the figures depend on, and how they were asked for."""
    found: dict[str, Any] = {
        "device": platform.processor() or platform.machine(),
        "driver": None,
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        **{name: _version(name) for name in ("triton", "transformers")},
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "commit": _output("git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"),
        "changed": bool(_output("git", "-C", str(Path(__file__).parent), "status", "--porcelain")),
        "command": " ".join([Path(sys.executable).name, *sys.argv]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found["device"] = properties.name
        found["memory_bytes"] = properties.total_memory
        found["processors"] = properties.multi_processor_count
        found["driver"] = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return found


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _output(*command: str) -> str | None:
    """A program's output; None where it is missing or fails."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip() or None
