"""Rows that stand in for rows of foreign pools, where a graph reads fixed addresses."""

from collections.abc import Sequence
from weakref import ref

import torch
from torch import Tensor

from fuel_core.cache import Cache, CachePool
from fuel_core.step import StepInputs


class StagingRows:
    """A private pool with a row for each place of a batch.

    Loading copies the live prefix of a cache into its place, unless the place holds it already;
    storing copies the newest token back. So the foreign cache is whole after every step, and the rows
    of the pool that the plan was made on are never touched.

    Attributes:
        pool: the rows.
        inputs: of the step that reads them: the plan's own, save that place b is row b.
    """

    def __init__(self, like: CachePool, inputs: StepInputs) -> None:
        places = inputs.rows_B.shape[0]
        self.pool = CachePool(
            like.spec, rows=places, capacity=like.capacity, dtype=like.dtype, device=like.device
        )
        self.inputs = StepInputs(
            token_ids_BT=inputs.token_ids_BT,
            positions_BT=inputs.positions_BT,
            rows_B=torch.arange(places, device=inputs.rows_B.device),
            rope_regime_B=inputs.rope_regime_B,
        )
        self._held: list[tuple[object, ...]] = [()] * places
        self._caches: Sequence[Cache | None] = ()

    def load(self, caches: Sequence[Cache | None]) -> int:
        """Put caches in their places; return how many buffers were copied."""
        copies = 0
        for place, cache in enumerate(caches):
            # the version counts the calls that wrote a cache; a new regime writes all keys anew within one
            if cache is not None and self._held[place] != _identity(cache, cache.version):
                for staged, own in self._slots(place, cache):
                    staged.narrow(-2, 0, cache.length).copy_(own.narrow(-2, 0, cache.length))
                    copies += 1
                self._held[place] = _identity(cache, cache.version)
        self._caches = caches
        return copies

    def store(self) -> None:
        """Copy the token that a step has just written back to the caches of the last load."""
        for place, cache in enumerate(self._caches):
            if cache is None:
                self._held[place] = ()  # an idle place was written at its start
                continue
            for staged, own in self._slots(place, cache):
                own.narrow(-2, cache.length, 1).copy_(staged.narrow(-2, cache.length, 1))
            self._held[place] = _identity(cache, cache.version + 1)  # the driver counts the step
        self._caches = ()

    def _slots(self, place: int, cache: Cache) -> list[tuple[Tensor, Tensor]]:
        """Each buffer's row of this place and of the cache; tokens are their last dimension but one."""
        return [
            (staged[place], own[cache.row])
            for ours, theirs in zip(self.pool.layers, cache.pool.layers, strict=True)
            for staged, own in zip(ours.tensors, theirs.tensors, strict=True)
        ]


def _identity(cache: Cache, version: int) -> tuple[object, ...]:
    return (ref(cache), version, cache.regime)
