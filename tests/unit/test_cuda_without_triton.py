"""What serves on CUDA where no kernel does: torch's own operations, here on the CPU's tensors.

Letters: B rows, T tokens, H query heads, G key/value heads, D head dim, C capacity, K latent rank,
R rotary width, N unrotated and V value dims of a head.
"""

import subprocess
import sys

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fuel_core.errors import CapacityError
from fuel_core.ops import cuda, kernels
from fuel_core.ops.cached import attend_reference
from fuel_core.ops.latent import expanded_reference, latent_reference
from fuel_core.plans import UNBOUNDED, visible

H, G, D, C, K, R, N, V = 6, 2, 8, 24, 8, 4, 6, 5


class NoHostRead(TorchDispatchMode):
    """Refuses to read a value of a tensor, as a capture would."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        assert func is not torch.ops.aten._local_scalar_dense.default, "a device value was read"
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def no_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "triton_runs", lambda: False)


def noise(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def step(held: list[int], tokens: int, window: int) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Rows, positions, window and mask."""
    rows = torch.arange(len(held)).flip(0) + 1
    positions = torch.tensor(held)[:, None] + torch.arange(tokens)
    keys = torch.arange(held[0] + tokens)
    width = torch.tensor(window)
    return rows, positions, width, visible(positions[0, :, None], keys, width) if tokens > 1 else None


def projections(batch: int, tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v of this step."""
    heads = (H, G, G)
    q, k, v = (noise(seed, batch, tokens, count, D) for seed, count in enumerate(heads, start=3))
    return q, k, v


def forget(pool: Tensor, rows: Tensor, held: list[int], dim: int) -> Tensor:
    """NaN where a row holds nothing: it may be read by nobody as a number."""
    for row, length in zip(rows.tolist(), held, strict=True):
        pool[row].narrow(dim - 1, length, C - length).fill_(torch.nan)
    return pool


STEPS = {
    "one token": ([5], 1, UNBOUNDED),
    "first token": ([0], 1, UNBOUNDED),
    "rows of other lengths": ([3, 11, C - 1], 1, UNBOUNDED),
    "window": ([17, 3], 1, 4),
    "chunk": ([6], 9, UNBOUNDED),
    "first chunk": ([0], 9, 4),
    "chunk across a window": ([3], 9, 4),
    "chunk to the end": ([15], 9, UNBOUNDED),
}


@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("name", STEPS)
def test_attend(name: str, softcap: float | None) -> None:
    held, tokens, window = STEPS[name]
    rows, *where, mask = step(held, tokens, window)
    k_pool, v_pool = (forget(noise(seed, 5, G, C, D), rows, held, 2) for seed in (1, 2))
    new = projections(len(held), tokens)
    k_wanted, v_wanted = k_pool.clone(), v_pool.clone()
    wanted = attend_reference(*new, k_wanted, v_wanted, rows, *where, mask, 0.3, softcap)
    with NoHostRead():
        found = cuda.attend_cuda(*new, k_pool, v_pool, rows, *where, mask, 0.3, softcap)
    torch.testing.assert_close(found, wanted, atol=1e-12, rtol=0)
    torch.testing.assert_close(k_pool, k_wanted, atol=0, rtol=0, equal_nan=True)
    torch.testing.assert_close(v_pool, v_wanted, atol=0, rtol=0, equal_nan=True)


@pytest.mark.parametrize("name", STEPS)
def test_attend_latent(name: str) -> None:
    held, tokens, window = STEPS[name]
    rows, *where, mask = step(held, tokens, window)
    pool = forget(noise(1, 5, C, K + R), rows, held, 1)
    new = noise(2, len(held), tokens, H, K + R), noise(3, len(held), tokens, K + R)
    wanted_pool = pool.clone()
    wanted = latent_reference(*new, wanted_pool, rows, *where, mask, 0.3, K)
    with NoHostRead():
        found = cuda.latent_cuda(*new, pool, rows, *where, mask, 0.3, K)
    torch.testing.assert_close(found, wanted, atol=1e-12, rtol=0)
    torch.testing.assert_close(pool, wanted_pool, atol=0, rtol=0, equal_nan=True)


@pytest.mark.parametrize("name", STEPS)
def test_attend_expanded(name: str) -> None:
    held, tokens, window = STEPS[name]
    rows, *where, mask = step(held, tokens, window)
    pool, w_kv = noise(1, 5, C, K + R), noise(2, H, N + V, K)
    new = noise(3, len(held), tokens, H, N + R), noise(4, len(held), tokens, K + R)
    wanted_pool = pool.clone()
    wanted = expanded_reference(*new, wanted_pool, w_kv, rows, *where, mask, 0.3)
    with NoHostRead():
        found = cuda.expanded_cuda(*new, pool, w_kv, rows, *where, mask, 0.3)
    torch.testing.assert_close(found, wanted, atol=1e-12, rtol=0)
    assert torch.equal(pool, wanted_pool)


def test_a_bucket_is_a_view_of_the_pool() -> None:
    """Whoever knows that rows are short passes the first slots of longer rows; writes land in these."""
    rows, *where, _ = step([5, 2], 1, UNBOUNDED)
    k_pool, v_pool = noise(1, 5, G, C, D), noise(2, 5, G, C, D)
    new = projections(2, 1)
    wanted = attend_reference(*new, k_pool.clone(), v_pool.clone(), rows, *where, None, 0.3, None)
    found = cuda.attend_cuda(*new, k_pool[:, :, :8], v_pool[:, :, :8], rows, *where, None, 0.3, None)
    torch.testing.assert_close(found, wanted, atol=1e-12, rtol=0)
    assert torch.equal(k_pool[2, :, 5], new[1][0, 0])


def test_a_chunk_beyond_the_capacity_is_refused_before_anything_is_written() -> None:
    rows, *where, mask = step([C - 3], 4, UNBOUNDED)
    pool = noise(1, 5, G, C, D)
    before = pool.clone()
    new = projections(1, 4)
    with pytest.raises(CapacityError, match=f"position {C} is beyond the capacity of {C}"):
        cuda.attend_cuda(*new, pool, pool, rows, *where, mask, 0.3, None)
    assert torch.equal(pool, before)


def test_importing_the_operations_imports_no_triton() -> None:
    """It is optional, and slow to import where nothing needs it."""
    code = "import sys, fuel_core.ops; sys.exit('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
