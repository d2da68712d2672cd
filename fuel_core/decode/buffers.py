"""The static buffers that a held step reads, and the one way to overwrite them."""

from collections.abc import Sequence

import torch

from fuel_core.cache import Cache, CachePool
from fuel_core.decode.transfer import upload
from fuel_core.step import StepInputs


def step_inputs(
    token_ids: Sequence[Sequence[int]],
    starts: Sequence[int],
    rows: Sequence[int],
    regimes: Sequence[int],
    device: torch.device,
) -> StepInputs:
    """Freshly allocated inputs of a step that writes ``token_ids[b]`` from position ``starts[b]`` on."""
    tokens = len(token_ids[0])

    def tensor(values: object) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=device)

    return StepInputs(
        token_ids_BT=tensor(token_ids),
        positions_BT=tensor([range(start, start + tokens) for start in starts]),
        rows_B=tensor(rows),
        rope_regime_B=tensor(regimes),
    )


def pool_of(caches: Sequence[Cache | None]) -> CachePool:
    """The pool of the caches of one step, of which one at least is there."""
    return next(cache.pool for cache in caches if cache is not None)


def append_inputs(
    token_ids: Sequence[Sequence[int]], caches: Sequence[Cache | None], device: torch.device
) -> StepInputs:
    """Freshly allocated inputs of a step that appends ``token_ids[b]`` to ``caches[b]``.

    An idle row, where there is no cache, writes to the pool's spare row from its start on.
    """
    spare = pool_of(caches).spare_row
    return step_inputs(
        token_ids,
        [0 if cache is None else cache.length for cache in caches],
        [spare if cache is None else cache.row for cache in caches],
        [0 if cache is None else cache.regime for cache in caches],
        device,
    )


def rebind(buffers: StepInputs, token_ids: Sequence[Sequence[int]], caches: Sequence[Cache | None]) -> None:
    """Overwrite static ``buffers`` with the inputs of this token: four tiny copies, and no wait for what
    the device was given to do before."""
    fresh = append_inputs(token_ids, caches, torch.device("cpu"))
    upload(buffers.token_ids_BT, fresh.token_ids_BT)
    upload(buffers.positions_BT, fresh.positions_BT)
    upload(buffers.rows_B, fresh.rows_B)
    upload(buffers.rope_regime_B, fresh.rope_regime_B)
