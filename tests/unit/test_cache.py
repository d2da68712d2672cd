"""Cache pools and the handles on their rows."""

import pytest
import torch

from fuel_core.cache import CachePool, KVBuffers, LatentBuffers
from fuel_core.errors import CapacityError, RequestError
from fuel_core.plans import CacheSpec, KVSlots, LatentSlots

SPEC = CacheSpec((KVSlots(2, 4), LatentSlots(6, 2)))


def pool(rows: int = 2, capacity: int = 8) -> CachePool:
    return CachePool(SPEC, rows=rows, capacity=capacity, dtype=torch.float16)


def test_buffers_are_zeroed_with_a_spare_row() -> None:
    kv, latent = pool().layers
    assert isinstance(kv, KVBuffers)
    assert isinstance(latent, LatentBuffers)
    assert kv.k.shape == kv.v.shape == (3, 2, 8, 4)
    assert latent.buffer.shape == (3, 8, 8)
    assert all((t == 0).all() for layer in pool().layers for t in layer.tensors)
    assert pool().spare_row == 2


def test_latent_slots_are_views_of_one_buffer() -> None:
    """Absorbed attention reads both slots as one key: copies would double the traffic."""
    latent = pool().layers[1]
    assert isinstance(latent, LatentBuffers)
    assert latent.latent.shape == (3, 8, 6)
    assert latent.k_pe.shape == (3, 8, 2)
    latent.k_pe.fill_(3)
    assert (latent.buffer[..., 6:] == 3).all()
    assert (latent.latent == 0).all()


def test_bytes_are_exact() -> None:
    assert pool().bytes_per_token == (2 * 2 * 4 + 6 + 2) * 2
    assert pool().bytes == pool().bytes_per_token * 8 * 3


def test_published_latent_sizes() -> None:
    """DeepSeek-V2-Lite stores 576 elements a token and layer, 31,104 bytes at two bytes; V3 70,272."""
    assert CacheSpec.uniform(LatentSlots(512, 64), 27).bytes_per_token(2) == 31_104
    assert CacheSpec.uniform(LatentSlots(512, 64), 61).bytes_per_token(2) == 70_272


def test_rows_are_given_once_and_come_back_empty() -> None:
    rows = pool()
    first, second = rows.acquire(), rows.acquire()
    assert {first.row, second.row} == {0, 1}
    with pytest.raises(CapacityError, match="2 rows"):
        rows.acquire()
    first.advance([1, 2])
    rows.release(first)
    with pytest.raises(RequestError, match="not in use by this cache"):
        rows.release(first)
    with pytest.raises(RequestError, match="not in use by this cache"):
        pool().release(second)
    assert rows.acquire().length == 0


def test_two_calls_are_two_versions() -> None:
    cache = pool().acquire()
    cache.advance([1, 2, 3])
    cache.advance([4])
    assert (cache.version, cache.length, cache.token_ids) == (2, 4, [1, 2, 3, 4])


def test_reset_and_truncate_move_no_buffer() -> None:
    """A held plan reads buffers by address: an engine that replaced them answered from the old ones."""
    rows = pool()
    cache = rows.acquire()
    before = rows.addresses
    cache.advance([1, 2, 3])
    cache.truncate(2)
    assert cache.token_ids == [1, 2]
    cache.reset()
    assert cache.length == 0
    assert rows.addresses == before


@pytest.mark.parametrize("length", [-1, 4])
def test_truncate_refuses_what_is_not_held(length: int) -> None:
    cache = pool().acquire()
    cache.advance([1, 2, 3])
    with pytest.raises(RequestError, match=f"3 token.s. to {length}"):
        cache.truncate(length)


def test_require_names_both_numbers() -> None:
    cache = pool().acquire()
    cache.advance(range(6))
    cache.require(2)
    with pytest.raises(CapacityError, match=r"3 token.*6 of 8"):
        cache.require(3)
    with pytest.raises(RequestError, match="at least one token"):
        cache.require(0)


@pytest.mark.parametrize(("rows", "capacity"), [(0, 8), (1, 0)])
def test_an_empty_pool_is_refused(rows: int, capacity: int) -> None:
    with pytest.raises(RequestError, match=f"{rows} x {capacity}"):
        pool(rows, capacity)
