"""What the GPU benchmark runs on: a device, the backends on it, and sessions of models there."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fuel_core.blocks import Decoder
from fuel_core.cache import Cache, CachePool
from fuel_core.decode import Backend, DecodeSession, EagerBackend, backend_named

CAPACITY = 1024
"""Of every tiny session: one, so that each kernel is compiled once."""

BITWISE = ("eager", "cudagraph")
"""Backends that run the eager step's own kernels."""

MakeBackend = Callable[[], Backend]


@dataclass(frozen=True, kw_only=True)
class Bench:
    """A device and how to make each backend on it; tests give a CPU and graphs that need no GPU.

    Attributes:
        dtypes: of the models that are held against D1 bit for bit.
        request_tokens: new tokens of each request of the strict run.
    """

    device: torch.device
    backends: Mapping[str, MakeBackend]
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16)
    request_tokens: tuple[int, int, int] = (300, 130, 70)

    @classmethod
    def cuda(cls) -> "Bench":
        def maker(name: str) -> MakeBackend:
            return lambda: backend_named(name)

        names = ("eager", "cudagraph", "compiled")
        return cls(device=torch.device("cuda", 0), backends={name: maker(name) for name in names})

    @property
    def bitwise(self) -> tuple[str, ...]:
        return tuple(name for name in BITWISE if name in self.backends)

    def captures(self, backend: str) -> int:
        """Graphs of one planned batch size."""
        return 0 if backend == "eager" else 1

    def session(
        self, decoder: Decoder, backend: str, *, rows: int = 1, capacity: int = CAPACITY, strict: bool = True
    ) -> DecodeSession:
        """A session on a pool of its own."""
        caches = acquired(decoder, rows, capacity)
        return DecodeSession(decoder, caches, self.backends[backend](), strict=strict)

    def synchronise(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


class EagerTwin:
    """D1, the oracle: the same tokens by the eager step, built, run and forgotten, in a pool of its own."""

    def __init__(self, decoder: Decoder, *, rows: int = 1, capacity: int = CAPACITY) -> None:
        self._session = DecodeSession(decoder, acquired(decoder, rows, capacity), EagerBackend())

    @property
    def caches(self) -> tuple[Cache, ...]:
        return self._session.caches

    def prefill(self, token_ids: Sequence[int], row: int = 0) -> Tensor:
        return self._session.prefill(token_ids, self.caches[row]).clone()

    @torch.no_grad()
    def step(self, token_ids: Sequence[int], caches: Sequence[Cache | None] | None = None) -> Tensor:
        """Logits ``[B, V]`` of one token a row."""
        rows = [[token] for token in token_ids]
        return self._session.run_once(rows, self.caches if caches is None else caches).clone()


def acquired(decoder: Decoder, rows: int, capacity: int) -> list[Cache]:
    """The rows of a new pool for a model."""
    spec, dtype = decoder.plan.cache, decoder.plan.numerics.cache
    pool = CachePool(spec, rows=rows, capacity=capacity, dtype=dtype, device=decoder.device)
    return [pool.acquire() for _ in range(rows)]
