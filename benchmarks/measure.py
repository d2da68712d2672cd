"""Measuring on a machine whose speed drifts: interleaved runs, medians, a bandwidth probe."""

import json
import os
import platform
from collections.abc import Callable, Mapping
from statistics import median
from time import perf_counter
from typing import Any

import torch

PROBE_BYTES = 512 << 20
"""Far more than any cache holds."""


def interleaved(sides: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Run every side once a round, A B A B; return the seconds of each run."""
    for run in sides.values():
        run()  # warm-up
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, run in sides.items():
            start = perf_counter()
            run()
            seconds[name].append(perf_counter() - start)
    return seconds


def median_ratio(a: list[float], b: list[float]) -> float:
    """The median over rounds of a's time to b's: both of one round saw the same machine."""
    return median(x / y for x, y in zip(a, b, strict=True))


def read_bandwidth() -> Callable[[], float]:
    """A probe that reads 512 MiB once and returns bytes a second."""
    data = torch.ones(PROBE_BYTES // 8, dtype=torch.int64)

    def probe() -> float:
        start = perf_counter()
        data.sum()
        return PROBE_BYTES / (perf_counter() - start)

    return probe


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    return {
        "cpu": torch.cpu.get_capabilities().get("cpu_name") or platform.processor(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "cores": len(os.sched_getaffinity(0)),
        "torch": torch.__version__,
    }


def report(result: Mapping[str, Any], as_json: bool) -> None:
    """Print a result for people, or as JSON."""
    if as_json:
        print(json.dumps(result, indent=2))
        return
    for key, value in result.items():
        print(f"{key:28} {value:.4g}" if isinstance(value, float) else f"{key:28} {value}")
