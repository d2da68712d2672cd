"""Caches: one pool of preallocated rows, and a handle on each row.

Letters: G key/value heads, C capacity, D head dim, K latent rank, R rotary width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from fuel_core.errors import CapacityError, GeometryError, RequestError
from fuel_core.plans.cache_spec import CacheSpec, KVSlots


@dataclass(frozen=True)
class KVBuffers:
    """The keys and values of one layer: ``[rows, G, C, D]`` each."""

    k: Tensor
    v: Tensor

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.k, self.v)

    def first(self, tokens: int) -> "KVBuffers":
        """Views of the first tokens of every row."""
        return KVBuffers(self.k[:, :, :tokens], self.v[:, :, :tokens])


@dataclass(frozen=True)
class LatentBuffers:
    """The latents of one layer: ``[rows, C, K + R]``, of which the slots are views."""

    buffer: Tensor
    rank: int

    @property
    def latent(self) -> Tensor:
        """``[rows, C, K]``"""
        return self.buffer[..., : self.rank]

    @property
    def k_pe(self) -> Tensor:
        """``[rows, C, R]``"""
        return self.buffer[..., self.rank :]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.buffer,)

    def first(self, tokens: int) -> "LatentBuffers":
        """A view of the first tokens of every row."""
        return LatentBuffers(self.buffer[:, :tokens], self.rank)


LayerBuffers = KVBuffers | LatentBuffers


class CachePool:
    """Buffers for a number of rows, allocated once and zeroed.

    One spare row beyond ``rows`` takes the writes of idle rows in a batch. Buffers never move and
    are never replaced while the pool lives: held plans read them by address.

    Attributes:
        spec, rows, capacity, dtype, device: what was asked for.
        layers: the buffers of each layer.
        addresses: where they lie, as held plans record it.

    Raises:
        RequestError: no row or no capacity.
    """

    def __init__(
        self,
        spec: CacheSpec,
        *,
        rows: int,
        capacity: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> None:
        if rows < 1 or capacity < 1:
            raise RequestError(f"a cache pool needs rows and capacity, asked for {rows} x {capacity} tokens")
        self.spec, self.rows, self.capacity = spec, rows, capacity
        self.dtype = dtype
        self.layers = tuple(self._allocate(layer, device) for layer in range(len(spec.layers)))
        self.device = self.layers[0].tensors[0].device  # with its number, as models state theirs
        self._free = list(reversed(range(rows)))
        self._holders: WeakValueDictionary[int, Cache] = WeakValueDictionary()  # caches hold their pool

    @torch.inference_mode(False)  # whoever is in it could alone write to what it makes
    def _allocate(self, layer: int, device: torch.device | str) -> LayerBuffers:
        slots, rows, capacity = self.spec.layers[layer], self.rows + 1, self.capacity

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=self.dtype, device=device)

        if isinstance(slots, KVSlots):
            shape = (rows, slots.heads, capacity, slots.head_dim)
            return KVBuffers(zeros(*shape), zeros(*shape))
        return LatentBuffers(zeros(rows, capacity, slots.rank + slots.rope_width), slots.rank)

    @property
    def spare_row(self) -> int:
        return self.rows

    @property
    def geometry(self) -> tuple[object, ...]:
        """Pools of equal geometry can serve each other's held plans."""
        return (self.spec, self.capacity, self.dtype, self.device)

    @property
    def addresses(self) -> tuple[int, ...]:
        return tuple(tensor.data_ptr() for layer in self.layers for tensor in layer.tensors)

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token of one row, over all layers."""
        return self.spec.bytes_per_token(self.dtype.itemsize)

    @property
    def bytes(self) -> int:
        """All bytes that are allocated, the spare row included."""
        return self.bytes_per_token * self.capacity * (self.rows + 1)

    def acquire(self) -> "Cache":
        """Return an empty cache on a free row.

        Raises:
            CapacityError: every row is in use.
        """
        if not self._free:
            raise CapacityError(
                f"all {self.rows} rows of the cache pool are in use; release one or make a larger pool"
            )
        cache = Cache(self, self._free.pop())
        self._holders[cache.row] = cache
        return cache

    def holds(self, cache: "Cache") -> bool:
        """Whether a cache is this pool's and was not released."""
        return self._holders.get(cache.row) is cache

    def release(self, cache: "Cache") -> None:
        """Give a row back. The cache must not be used afterwards.

        Raises:
            RequestError: the cache is another pool's, or was released before.
        """
        if not self.holds(cache):
            raise RequestError(f"row {cache.row} of this cache pool is not in use by this cache")
        self._free.append(cache.row)
        del self._holders[cache.row]
        cache.reset()


class Cache:
    """A handle on one row of a pool: the tokens that one sequence holds.

    Attributes:
        pool, row: where the tokens lie.
        token_ids: the tokens held. The host is the authority; no device value is read back.
        version: how many calls have written this row; one number for all its slots, which are
            written together.
        regime: the RoPE regime under which its keys were rotated; ``UNSETTLED`` while they are being
            computed anew.
    """

    UNSETTLED = -1

    def __init__(self, pool: CachePool, row: int) -> None:
        self.pool, self.row = pool, row
        self.token_ids: list[int] = []
        self.version = 0
        self.regime = 0

    @property
    def length(self) -> int:
        return len(self.token_ids)

    @property
    def capacity(self) -> int:
        return self.pool.capacity

    @property
    def remaining(self) -> int:
        return self.capacity - self.length

    def require(self, tokens: int) -> None:
        """Check that ``tokens`` more fit.

        Raises:
            RequestError: no token at all.
            CapacityError: they do not fit; nothing was written.
        """
        if tokens < 1:
            raise RequestError("a step needs at least one token, got none")
        if tokens > self.remaining:
            raise CapacityError(
                f"{tokens} token(s) do not fit: the cache holds {self.length} of {self.capacity}; "
                "truncate or reset it, or make one with a larger capacity"
            )

    def advance(self, token_ids: Sequence[int]) -> None:
        """Count the tokens that a successful call has written."""
        self.token_ids.extend(token_ids)
        self.version += 1

    def truncate(self, length: int) -> None:
        """Forget the tokens from ``length`` on, in place: no buffer moves.

        Raises:
            RequestError: the row holds fewer tokens.
        """
        if not 0 <= length <= self.length:
            raise RequestError(f"cannot truncate a cache of {self.length} token(s) to {length}")
        del self.token_ids[length:]

    def reset(self) -> None:
        """Forget all tokens, in place: no buffer moves."""
        self.token_ids.clear()
        self.regime = 0

    def __repr__(self) -> str:
        return f"Cache(row={self.row}, length={self.length}, capacity={self.capacity})"


def check_geometry(
    family: str, pool: CachePool, spec: CacheSpec, dtype: torch.dtype, device: torch.device
) -> None:
    """Check that a pool holds what a model caches.

    Raises:
        GeometryError: naming the family, what it needs and what the pool has.
    """
    for what, wanted, found in (
        ("layers", len(spec.layers), len(pool.spec.layers)),
        ("dtype", dtype, pool.dtype),
        ("device", device, pool.device),
    ):
        if wanted != found:
            raise GeometryError(f"{family} needs a cache of {what} {wanted}, this one has {found}")
    if spec == pool.spec:  # at once where it is the model's own spec, as at almost every token
        return
    for layer, (slots, held) in enumerate(zip(spec.layers, pool.spec.layers, strict=True)):
        if slots != held:
            raise GeometryError(f"{family} caches {slots} a token in layer {layer}, this cache holds {held}")
