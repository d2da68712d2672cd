"""Capacity buckets: attention that costs what a row can hold is shown no more of it than it needs.

Most kernels follow the length of a row, which they read where they run. Others read every slot that they
are given, and only the host knows how many suffice: it gives them the first ones, in a few sizes.
"""

from collections.abc import Sequence

from fuel_core.cache import Cache, CachePool, LayerBuffers
from fuel_core.ops import follows_length
from fuel_core.plans.model_plan import ModelPlan

LEAST_TOKENS = 256
"""Of the smallest bucket, which short rows share. Each further one is twice as large."""


def attended_tokens(caches: Sequence[Cache | None]) -> int:
    """The most that a row of a single-token step attends to, its new token included."""
    return 1 + max(cache.length for cache in caches if cache is not None)


class CapacityBuckets:
    """What steps of one token see of a pool: its own buffers, or views of their first tokens.

    Attributes:
        pool: whose.
    """

    def __init__(self, plan: ModelPlan, pool: CachePool) -> None:
        self.pool = pool
        self._whole = all(
            follows_length(layer.mixer, slots, plan.numerics, pool.device)
            for layer, slots in zip(plan.layers, plan.cache.layers, strict=True)
        )
        self._views: dict[int, Sequence[LayerBuffers]] = {}

    def size(self, attended: int) -> int:
        """The tokens of a row that are shown to a step which attends to so many."""
        capacity = self.pool.capacity
        if self._whole:
            return capacity
        return min(capacity, max(LEAST_TOKENS, 1 << (attended - 1).bit_length()))

    def shown(self, attended: int) -> Sequence[LayerBuffers]:
        """The buffers for a step that attends to so many tokens."""
        return self.buffers(self.size(attended))

    def buffers(self, size: int) -> Sequence[LayerBuffers]:
        """The pool's buffers, cut to their first ``size`` tokens."""
        if size == self.pool.capacity:
            return self.pool.layers
        if size not in self._views:
            self._views[size] = tuple(layer.first(size) for layer in self.pool.layers)
        return self._views[size]
