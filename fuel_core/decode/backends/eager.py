"""The eager backend: the held step is the decoder's own step over bound buffers."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fuel_core.blocks.decoder import Decoder
from fuel_core.cache import Cache, CachePool
from fuel_core.decode.backends.step_body import eager_body
from fuel_core.decode.buckets import CapacityBuckets
from fuel_core.decode.buffers import pool_of
from fuel_core.step import StepInputs


class EagerStep:
    """A held step that dispatches its operations one by one."""

    captures = 0
    staged = False

    def __init__(self, decoder: Decoder, pool: CachePool, inputs: StepInputs) -> None:
        self.inputs = inputs
        self.decoder, self.buckets = decoder, CapacityBuckets(decoder.plan, pool)

    def bind(self, decoder: Decoder, caches: Sequence[Cache | None]) -> int:
        self.decoder, self.buckets = decoder, CapacityBuckets(decoder.plan, pool_of(caches))
        return 0

    def replay(self, attended: int) -> Tensor:
        return eager_body(self.decoder, self.decoder.tables, self.inputs, self.buckets.shown(attended))

    def followed_by(self, follow: Callable[[Tensor], Tensor]) -> Callable[[int], Tensor]:
        return lambda attended: follow(self.replay(attended))


class EagerBackend:
    """Plans by binding alone; for every device and batch size."""

    name = "eager"

    def batch_size(self, rows: int, device: torch.device) -> int:
        return rows

    def runs_ahead(self, device: torch.device) -> bool:
        return False

    def plan(self, decoder: Decoder, pool: CachePool, inputs: StepInputs, attended: int) -> EagerStep:
        return EagerStep(decoder, pool, inputs)
