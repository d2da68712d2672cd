"""The inputs of a step: those that a held step reads lie at fixed places, and one copy overwrites them.

Letters: B rows, T new tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fuel_core.cache import Cache, CachePool
from fuel_core.decode.transfer import upload
from fuel_core.step import StepInputs


@dataclass(frozen=True)
class StaticInputs(StepInputs):
    """The four inputs of a single-token step as views of one tensor.

    Attributes:
        packed_4B: int64: of each row its token, position, pool row and RoPE regime.
    """

    packed_4B: Tensor

    @classmethod
    def of(cls, packed_4B: Tensor) -> "StaticInputs":
        tokens_B, positions_B, rows_B, regimes_B = packed_4B.unbind()
        return cls(tokens_B[:, None], positions_B[:, None], rows_B, regimes_B, packed_4B)


def pool_of(caches: Sequence[Cache | None]) -> CachePool:
    """The pool of the caches of one step, of which one at least is there."""
    return next(cache.pool for cache in caches if cache is not None)


def append_inputs(
    token_ids: Sequence[Sequence[int]], caches: Sequence[Cache | None], pool: CachePool
) -> StaticInputs:
    """Freshly allocated inputs of a step that appends one token to each cache of ``pool``.

    An idle row, where there is no cache, writes to the pool's spare row, at its start.
    """
    return StaticInputs.of(_packed(token_ids, caches, pool).to(pool.device))


def rebind(buffers: StaticInputs, token_ids: Sequence[Sequence[int]], caches: Sequence[Cache | None]) -> None:
    """Overwrite static ``buffers`` with the inputs of this token: one tiny copy, and no wait for what
    the device was given to do before."""
    upload(buffers.packed_4B, _packed(token_ids, caches, pool_of(caches)))


def prefill_inputs(cache: Cache, token_ids: Sequence[int], start: int) -> StepInputs:
    """Freshly allocated inputs of a step that writes tokens of one row from position ``start`` on."""
    device = cache.pool.device
    return StepInputs(
        token_ids_BT=torch.tensor([token_ids], dtype=torch.int64, device=device),
        positions_BT=torch.arange(start, start + len(token_ids), device=device)[None],
        rows_B=torch.tensor([cache.row], device=device),
        rope_regime_B=torch.tensor([cache.regime], device=device),
    )


def _packed(token_ids: Sequence[Sequence[int]], caches: Sequence[Cache | None], pool: CachePool) -> Tensor:
    """The content of ``packed_4B``, on the host."""
    spare = (0, pool.spare_row, 0)
    places = [spare if cache is None else (cache.length, cache.row, cache.regime) for cache in caches]
    # whatever torch's default device is
    return torch.tensor([[ids[0] for ids in token_ids], *zip(*places, strict=True)], device="cpu")
