"""Faults of the driver: rebinding, pools, counting."""

from collections.abc import Sequence
from typing import Any

import pytest
from torch import Tensor

import fuel_core.decode.buffers
import fuel_core.decode.driver
from fuel_core.cache import Cache
from fuel_core.decode.backends.eager import EagerStep
from fuel_core.decode.buffers import StaticInputs
from fuel_core.testing.mutations.mutation import CoreMutation, Patch


def _forget(name: str) -> Patch:
    """A rebind that leaves one of the four tensors as the plan found it."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        right = fuel_core.decode.buffers.rebind

        def rebind(buffers: StaticInputs, *rest: Any) -> None:
            kept = getattr(buffers, name).clone()
            right(buffers, *rest)
            getattr(buffers, name).copy_(kept)

        monkeypatch.setattr("fuel_core.decode.session.rebind", rebind)

    return patch


def _answer_from_the_old_pool(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(EagerStep, "bind", lambda self, decoder, caches: 0)


def _never_advance(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Cache, "advance", lambda self, ids: None)


def _decode_without_advancing(patch: pytest.MonkeyPatch) -> None:
    right = fuel_core.decode.driver.drive

    def drive(session: Any, token_ids: Sequence[Sequence[int]], caches: Sequence[Cache]) -> Tensor:
        lengths = [cache.length for cache in caches]
        logits = right(session, token_ids, caches)
        for cache, length in zip(caches, lengths, strict=True):
            cache.truncate(length)
        return logits

    patch.setattr("fuel_core.decode.session.drive", drive)


DECODING_MUTATIONS = (
    CoreMutation("rebind forgets the token", _forget("token_ids_BT"), spares_planned_token=True),
    CoreMutation("rebind forgets the position", _forget("positions_BT"), spares_planned_token=True),
    CoreMutation("rebind forgets the row", _forget("rows_B")),
    CoreMutation("a foreign pool is not bound", _answer_from_the_old_pool),
    CoreMutation("the cache never advances", _never_advance),
    CoreMutation("a decoded token is not counted", _decode_without_advancing, spares_planned_token=True),
)
