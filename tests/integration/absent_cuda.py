"""Run every family on a CUDA device that need not be there: shapes, dtypes and devices, no numbers.

Torch's fake tensors hold no data, refuse operations on two devices, and cannot be read on the host. Cached
attention and experts run what is registered for CUDA; kernels are counted instead of launched.

Run as a program, without TRITON_INTERPRET; prints one JSON object: kernel -> launches.
"""

import ctypes
import json
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    FakeTensorDeviceMismatchError,
    FakeTensorMode,
)
from triton.runtime.jit import JITFunction

from fuel_core.blocks import Decoder
from fuel_core.cache import Cache, CachePool
from fuel_core.decode import CudaGraphBackend, DecodeSession, EagerBackend, RowChoice
from fuel_core.family import Family
from fuel_core.ops import cuda, kernels
from fuel_core.plans.model_plan import Numerics
from fuel_core.registry import Registry
from fuel_core.testing.tape import TapeDevice

DEVICE, DTYPE = torch.device("cuda", 0), torch.bfloat16

WITHOUT_TRITON = ("llama", "qwen3_moe", "deepseek_v2")
"""Enough for every operation that serves then."""

GUARD = """
#include <c10/core/impl/DeviceGuardImplInterface.h>
namespace c10::impl {
C10_REGISTER_GUARD_IMPL(CUDA, NoOpDeviceGuardImpl<DeviceType::CUDA>);
}
"""
"""Indexing asks for the guard of a tensor's device, which a build of torch for the CPU lacks."""

launches: Counter[str] = Counter()


def register_guard(folder: Path) -> None:
    source, library = folder / "guard.cpp", folder / "guard.so"
    source.write_text(GUARD)
    home = Path(torch.__file__).parent
    command = ["g++", "-shared", "-fPIC", "-std=c++20", f"-I{home / 'include'}", str(source)]
    subprocess.run([*command, "-o", str(library), f"-L{home / 'lib'}", "-lc10"], check=True)
    ctypes.CDLL(str(library))


def count_instead(kernel: Any, *arguments: Any, grid: Any, warmup: bool, **named: Any) -> None:
    """In place of a launch."""
    devices = {argument.device for argument in arguments if isinstance(argument, Tensor)}
    assert devices == {DEVICE}, f"{kernel.__name__} is given tensors on {devices}"
    launches[kernel.__name__] += 1


class Readback:
    """In place of what is read back: every row chose token 1."""

    def __init__(self, chosen_B2: Tensor) -> None:
        assert chosen_B2.device == DEVICE
        self._rows = chosen_B2.shape[0]

    def wait(self) -> Any:
        return Chosen([[1, 0.5]] * self._rows)


class Chosen:
    """As much of a tensor on the host as a session asks of what was chosen."""

    def __init__(self, rows: list[list[float]]) -> None:
        self._rows = rows

    def __getitem__(self, index: Any) -> "Chosen":
        whole = isinstance(index, slice)
        return Chosen(self._rows[index] if whole else [row[index[1]] for row in self._rows])

    def to(self, dtype: torch.dtype) -> "Chosen":
        return self

    def tolist(self) -> list[list[float]]:
        return self._rows


def absent_decoder(family: Family, tiny: str) -> Decoder:
    config, _ = family.config.read(dict(family.tiny[tiny]), source=f"tiny config {tiny!r}")
    numerics = Numerics(weights=DTYPE, activations=DTYPE, cache=DTYPE)
    with torch.device("meta"):
        decoder = family.build(config, family.plan(config, family.options()).with_numerics(numerics))
    for module in decoder.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            there = torch.empty(parameter.shape, dtype=parameter.dtype, device=DEVICE)
            setattr(module, name, nn.Parameter(there, requires_grad=False))
    return decoder


def rows(decoder: Decoder, count: int) -> list[Cache]:
    pool = CachePool(decoder.plan.cache, rows=count, capacity=72, dtype=DTYPE, device=DEVICE)
    return [pool.acquire() for _ in range(count)]


def decode(decoder: Decoder) -> None:
    """Every way through a model: in chunks, a held step, D1, captured, ahead, foreign, one-shot."""
    for backend in (EagerBackend(), CudaGraphBackend(graphs=lambda _: TapeDevice())):
        session = DecodeSession(decoder, rows(decoder, 3), backend)
        session.prefill(range(1, 41), session.caches[0], chunk_tokens=20)
        for token in (1, 2, 3):
            assert session.step([[token]], session.caches[:1]).device == DEVICE
        with torch.no_grad():
            session.run_once([[4]], session.caches[:1])
        session.step([[1], [2], [3]])
        session.step([[1]], rows(decoder, 1))
    choices = [RowChoice(temperature=0.7, top_k=5, top_p=0.9, min_p=0.1, number=0.3)] * 3
    for _ in range(3):
        session.step_chosen([[1], [1], [1]], session.caches, choices, choices)
    assert session.counters.discards == 0
    token_ids = torch.ones(2, 5, dtype=torch.int64, device=DEVICE)
    assert decoder(token_ids).device == DEVICE
    with torch.no_grad():
        decoder(token_ids)


class OnTheHost(nn.Module):
    """A part with a tensor on the CPU, or one that reads a value."""

    def __init__(self, inner: nn.Module, *, reads: bool) -> None:
        super().__init__()
        self.inner, self.reads = inner, reads

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(x)
        return y * float(y.amax()) if self.reads else y * torch.ones(y.shape[-1], dtype=y.dtype)


def refused(decoder: Decoder) -> None:
    """What must not go unseen: without this, a pass would show nothing."""
    layer: Any = decoder.layers[0]
    inner = layer.feed_forward
    for reads in (False, True):
        layer.feed_forward = OnTheHost(inner, reads=reads)
        try:
            DecodeSession(decoder, rows(decoder, 1), EagerBackend()).prefill([1, 2, 3])
        except (DataDependentOutputException, FakeTensorDeviceMismatchError):
            continue
        raise AssertionError("a tensor on another device, or a value that was read, went unseen")


def pretend(*, triton: bool) -> AbstractContextManager[object]:
    """A Hopper, with Triton or without."""
    return patch.multiple(kernels, triton_runs=lambda: triton, shared_memory_bytes=lambda device: 232_448)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        register_guard(Path(folder))
    for name, operation in (
        ("attend", cuda.attend_cuda),
        ("attend_latent", cuda.latent_cuda),
        ("attend_expanded", cuda.expanded_cuda),
        ("experts", cuda.experts_cuda),
    ):
        torch.library.register_fake(f"fuel::{name}", operation, allow_override=True)
    registry = Registry.discover()
    families = [registry.family(card.name) for card in registry.cards]
    with (
        patch.object(JITFunction, "run", count_instead),
        patch.object(Tensor, "pin_memory", lambda tensor: tensor),
        patch("fuel_core.decode.ahead.Readback", Readback),
        patch("torch.cuda.device_of", lambda _: nullcontext()),
        patch("torch.cuda.get_device_properties", lambda _: SimpleNamespace(multi_processor_count=132)),
        FakeTensorMode(),
    ):
        for family in families:
            with pretend(triton=True):
                decode(absent_decoder(family, next(iter(family.tiny))))
        for name in WITHOUT_TRITON:
            family = registry.family(name)
            with pretend(triton=False):
                decode(absent_decoder(family, next(iter(family.tiny))))
        with pretend(triton=False):
            refused(absent_decoder(families[0], next(iter(families[0].tiny))))
    print(json.dumps(launches))


if __name__ == "__main__":
    sys.exit(main())
