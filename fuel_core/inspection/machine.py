"""What fuel runs on: versions, devices, threads, kernels, the hub's cache. Functions import torch.

Each check may raise whatever its libraries raise; see :func:`fuel_core.inspection.finding.survived`.
"""

import os
import platform
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from itertools import islice
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

import fuel_core
from fuel_core.inspection.finding import Finding, Problem
from fuel_core.installed import installed_entry_points, origin

_SHOWN_DISTRIBUTIONS = ("torch", "pydantic", "tokenizers", "safetensors", "huggingface_hub", "transformers")

_TELLING_FEATURES = frozenset(
    {
        *("avx2", "fma3", "f16c", "avx_vnni", "avx512_f", "avx512_bf16", "avx512_fp16", "avx512_vnni"),
        *("amx_tile", "amx_bf16", "amx_fp16", "amx_int8"),
        *("neon", "fp16_arith", "bf16", "dot", "i8mm", "sve", "sve2", "sve_bf16", "sme", "sme2"),
    }
)
"""Of the many that torch lists, the instructions that decide how fast a dtype is."""

_MOST_CACHE_ENTRIES = 20_000
"""Enough for hundreds of models; a scan of a larger cache would keep the user waiting."""


def versions() -> Finding:
    """Versions of Python, fuel, its plugins and what they run on, against what fuel-core requires."""
    facts = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "fuel-core": fuel_core.__version__,
        **{name: _version(name) for name in _SHOWN_DISTRIBUTIONS},
        "plugins": dict(origin(entry_point) for entry_point in installed_entry_points()),
    }
    return Finding(name="versions", facts=facts, problems=tuple(_unmet_requirements()))


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _unmet_requirements() -> Iterator[Problem]:
    try:
        asked = requires("fuel-core") or []
    except PackageNotFoundError:  # run from a source tree
        return
    for requirement in map(Requirement, asked):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        found = _version(requirement.name)
        if found is None or not requirement.specifier.contains(found, prereleases=True):
            yield Problem(
                cause=f"fuel-core requires {requirement}, found {found or 'nothing'}",
                remedy=f"pip install '{requirement}'",
            )


def torch_import() -> Finding:
    """Whether torch can be imported at all, and as what."""
    import torch

    facts = {"version": torch.__version__, "cuda": torch.version.cuda, "file": torch.__file__}
    return Finding(name="torch", facts=facts)


def devices() -> Finding:
    """The processor with the instructions that matter, and every CUDA device."""
    import torch

    units = torch.cpu.get_capabilities()
    facts: dict[str, Any] = {
        "cpu": {
            "name": units.get("cpu_name") or platform.processor() or platform.machine(),
            "architecture": platform.machine(),
            "torch_kernels": torch.backends.cpu.get_cpu_capability(),
            "features": sorted(name for name in _TELLING_FEATURES if units.get(name)),
        },
        "cuda": [],
    }
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            device = torch.cuda.get_device_properties(index)
            facts["cuda"].append(
                {
                    "name": device.name,
                    "capability": f"{device.major}.{device.minor}",
                    "memory_bytes": device.total_memory,
                }
            )
    return Finding(name="devices", facts=facts)


def threads() -> Finding:
    """The threads that torch uses, and the cores that this process may use."""
    import torch

    used, cores = torch.get_num_threads(), available_cores()
    notes = []
    if used > cores:
        notes.append(
            f"torch uses {used} threads on {cores:g} cores, which slows decoding down; set OMP_NUM_THREADS="
            f"{max(1, int(cores))}"
        )
    facts = {
        "torch": used,
        "torch_interop": torch.get_num_interop_threads(),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
        "MKL_NUM_THREADS": os.environ.get("MKL_NUM_THREADS"),
        "cores": os.cpu_count(),
        "available_cores": cores,
    }
    return Finding(name="threads", facts=facts, notes=tuple(notes))


def available_cores(cgroup: Path = Path("/sys/fs/cgroup")) -> float:
    """The cores that this process may use: by its affinity, and by the quota of its container."""
    cores: float = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    quota = cpu_quota(cgroup)
    return cores if quota is None else min(cores, quota)


def cpu_quota(cgroup: Path) -> float | None:
    """The cores' worth of time that a control group grants; None for no limit.

    Source: the kernel's documentation of cgroup v2 (``cpu.max``) and v1 (``cpu.cfs_quota_us``).
    """
    try:
        if (cgroup / "cpu.max").is_file():
            quota, period = (cgroup / "cpu.max").read_text().split()
        else:
            quota, period = (
                (cgroup / "cpu" / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period")
            )
        granted = float(quota) / float(period)
    except (OSError, ValueError, ZeroDivisionError):  # no control group, or "max"
        return None
    return granted if granted > 0 else None


def kernels() -> Finding:
    """Which kernel of each operation of fuel serves each kind of device that is here."""
    import torch

    import fuel_core.ops  # noqa: F401  registers them

    present = ["CPU", *(["CUDA"] if torch.cuda.is_available() else [])]
    operations = sorted(name for name in torch._C._dispatch_get_all_op_names() if name.startswith("fuel::"))
    facts = {name: {device.lower(): _kernel(name, device) for device in present} for name in operations}
    problems = tuple(
        Problem(cause=f"{name} has no kernel for {device}", remedy="pip install --force-reinstall fuel-core")
        for name, serving in facts.items()
        for device, kernel in serving.items()
        if kernel is None
    )
    return Finding(name="kernels", facts=facts, problems=problems)


def _kernel(operation: str, device: str) -> str | None:
    """``own``: written for this device; ``reference``: the one that runs everywhere."""
    import torch

    for key, kernel in ((device, "own"), ("CompositeExplicitAutograd", "reference")):
        if torch._C._dispatch_has_kernel_for_dispatch_key(operation, key):
            return kernel
    return None


def hub_cache() -> Finding:
    """Where the hub's files are kept, and their size."""
    from huggingface_hub import constants

    folder = Path(constants.HF_HUB_CACHE)
    sizes = list(islice(_file_sizes(folder), _MOST_CACHE_ENTRIES + 1))
    facts = {
        "folder": str(folder),
        "exists": folder.is_dir(),
        "bytes": sum(sizes[:_MOST_CACHE_ENTRIES]),
        "complete": len(sizes) <= _MOST_CACHE_ENTRIES,
        "offline": constants.HF_HUB_OFFLINE,
    }
    notes = () if facts["complete"] else (f"only the first {_MOST_CACHE_ENTRIES:,} files are counted",)
    return Finding(name="hub cache", facts=facts, notes=notes)


def _file_sizes(folder: Path) -> Iterator[int]:
    """The size of each file. A link, by which a snapshot names a file, is as long as its path."""
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                yield os.stat(os.path.join(place, name), follow_symlinks=False).st_size
            except OSError:  # gone meanwhile
                continue
