"""The split kernels of cached attention, in triton's interpreter, against the definition.

Letters: B rows, H query heads, G key/value heads, D head dim, C capacity, X latent and rotary width.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from fuel_core.ops import attend, cuda, kernels
from fuel_core.ops.cached import attend_reference
from fuel_core.ops.latent import latent_reference
from fuel_core.ops.triton import attention, latent
from fuel_core.ops.triton.attention import attend_splits
from fuel_core.ops.triton.latent import attend_latent_splits
from fuel_core.ops.triton.split import live_splits, split_range
from fuel_core.ops.triton.tiling import SplitTiling, split_tiling
from fuel_core.plans import UNBOUNDED, visible

pytestmark = pytest.mark.usefixtures("interpreter")

C = 40
TILING = SplitTiling(block_tokens=16, head_rows=16, splits=3, warps=4, stages=2)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One step: how many tokens each row holds before it, and the geometry."""

    held: tuple[int, ...]
    groups: int = 1
    members: int = 1
    dim: int = 64
    window: int = UNBOUNDED
    softcap: float | None = None
    dtype: torch.dtype = torch.float32
    pool_dtype: torch.dtype | None = None
    splits: int = 3

    @property
    def tiling(self) -> SplitTiling:
        return replace(TILING, splits=self.splits)

    def arguments(self) -> tuple[Tensor | float | None, ...]:
        """As the operation takes them, without a mask; pools are NaN where nothing is held."""
        draw = torch.Generator().manual_seed(sum(self.held) + self.dim)

        def noise(*shape: int) -> Tensor:
            return torch.randn(shape, generator=draw)

        batch, rows = len(self.held), len(self.held) + 2
        order = list(range(rows))[::-1][:batch]
        pools = noise(2, rows, self.groups, C, self.dim)
        for row, held in zip(order, self.held, strict=True):
            pools[:, row, :, held:] = torch.nan
        k_pool, v_pool = pools.to(self.pool_dtype or self.dtype)
        q = noise(batch, 1, self.groups * self.members, self.dim).to(self.dtype)
        k_new, v_new = noise(2, batch, 1, self.groups, self.dim).to(self.dtype)
        positions, window = torch.tensor(self.held)[:, None], torch.tensor(self.window)
        scale = 2 * self.dim**-0.5
        return q, k_new, v_new, k_pool, v_pool, torch.tensor(order), positions, window, scale, self.softcap


Answer = tuple[Tensor, Tensor, Tensor]


def by_kernel(arguments: tuple[Tensor | float | None, ...], tiling: SplitTiling) -> Answer:
    q, k_new, v_new, k_pool, v_pool, *rest = arguments
    k_pool, v_pool = k_pool.clone(), v_pool.clone()
    return attend_splits(q, k_new, v_new, k_pool, v_pool, *rest, tiling), k_pool, v_pool


def by_definition(arguments: tuple[Tensor | float | None, ...]) -> Answer:
    """In float32 at least, so that half precision is held against what it should have been."""
    q, k_new, v_new, k_pool, v_pool, rows, positions, window, scale, softcap = arguments
    k_pool, v_pool = k_pool.clone(), v_pool.clone()
    fixed = (rows, positions, window, None, scale, softcap)
    return attend_reference(q.float(), k_new, v_new, k_pool, v_pool, *fixed), k_pool, v_pool


def error(found: Tensor, wanted: Tensor) -> float:
    """Relative to the largest value; NaN is no small number."""
    worst = ((found.double() - wanted.double()).abs().max() / wanted.double().abs().max()).item()
    return worst if worst == worst else torch.inf


CASES = {
    "one token": Case(held=(5,), groups=2),
    "first token": Case(held=(0,), groups=2, members=4),
    "block edges": Case(held=(16, 32, 15), members=4),
    "full row": Case(held=(C - 1,), members=4),
    "seven heads a group": Case(held=(17, 3, 0), groups=2, members=7, dim=80),
    "more heads than a tile": Case(held=(21, 33), members=20),
    "multi-head": Case(held=(37,), groups=2, dim=128),
    "window": Case(held=(39, 3, 20), members=4, window=7),
    "window of one": Case(held=(9, 0), window=1),
    "window of a block": Case(held=(38, 16), window=17),
    "softcap": Case(held=(30, 1), members=4, softcap=2.0),
    "softcap and window": Case(held=(38,), dim=80, window=21, softcap=0.7),
    "one split": Case(held=(39, 6), members=4, splits=1),
    "more splits than blocks": Case(held=(39, 6), members=4, splits=5),
}


@pytest.mark.parametrize("name", CASES)
def test_kernel_equals_the_definition(name: str) -> None:
    arguments = CASES[name].arguments()
    found, *pools = by_kernel(arguments, CASES[name].tiling)
    wanted, *wanted_pools = by_definition(arguments)
    assert error(found, wanted) < 1e-5
    for pool, wanted_pool in zip(pools, wanted_pools, strict=True):  # the slab, and not one value more
        torch.testing.assert_close(pool, wanted_pool, atol=0, rtol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("dtype", "pool_dtype", "bound"),
    [
        (torch.bfloat16, torch.bfloat16, 2**-7),
        (torch.float16, torch.float16, 2**-10),
        (torch.float32, torch.bfloat16, 1e-5),
        (torch.float32, torch.float16, 1e-5),
    ],
)
def test_dtypes(dtype: torch.dtype, pool_dtype: torch.dtype, bound: float) -> None:
    """Two roundings of half precision, of weights and of the output; none where q is float32: what is
    attended went through the pool's precision, this step's slab included."""
    case = Case(held=(30, 0, 1), members=4, dim=80, dtype=dtype, pool_dtype=pool_dtype)
    arguments = case.arguments()
    found, *pools = by_kernel(arguments, TILING)
    wanted, *wanted_pools = by_definition(arguments)
    assert found.dtype is dtype
    assert error(found, wanted) < bound
    for pool, wanted_pool in zip(pools, wanted_pools, strict=True):
        torch.testing.assert_close(pool, wanted_pool, atol=0, rtol=0, equal_nan=True)


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    case = Case(held=(21, 30, 4), members=4)
    arguments = list(case.arguments())
    arguments[3], arguments[4] = (pool.nan_to_num(7.0) for pool in arguments[3:5])  # type: ignore[union-attr]
    before = by_kernel(tuple(arguments), TILING)[0]
    arguments[0] = arguments[0].clone()
    arguments[0][1:] = 3.0  # type: ignore[index]
    arguments[6] = torch.tensor([[21], [0], [39]])
    assert torch.equal(by_kernel(tuple(arguments), TILING)[0][0], before[0])


def test_idle_rows_share_the_spare_row() -> None:
    case = Case(held=(21, 0, 0), members=4)
    arguments = list(case.arguments())
    arguments[5] = torch.tensor([2, 4, 4])
    arguments[3], arguments[4] = (pool.nan_to_num(7.0) for pool in arguments[3:5])  # type: ignore[union-attr]
    found, k_pool, _ = by_kernel(tuple(arguments), TILING)
    wanted, wanted_k_pool, _ = by_definition(tuple(arguments))
    assert error(found[:1], wanted[:1]) < 1e-5
    assert torch.equal(k_pool[:4], wanted_k_pool[:4])


def test_arguments_as_slices_and_pools_as_prefixes() -> None:
    """q, k and v as views of a fused projection, pools as the first tokens of longer ones."""
    q, k_new, v_new, k_pool, v_pool, *rest = Case(held=(19, 2), groups=2, members=2).arguments()
    wanted = by_definition((q, k_new, v_new, k_pool, v_pool, *rest))[0]
    fused = torch.cat((q, k_new, v_new), dim=2)
    found, short_k, _ = by_kernel((*fused.split([4, 2, 2], dim=2), k_pool, v_pool, *rest), TILING)
    assert error(found, wanted) < 1e-5
    assert short_k.shape[2] == C

    k_short, v_short = k_pool[:, :, :24], v_pool[:, :, :24]
    assert not k_short.is_contiguous()
    assert error(attend_splits(q, k_new, v_new, k_short, v_short, *rest, TILING), wanted) < 1e-5


@triton.jit
def ranges_kernel(POSITIONS, WINDOW, OUT, SPLITS: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row, split = tl.program_id(0), tl.program_id(1)
    position = tl.load(POSITIONS + row)
    begin, end = split_range(position, tl.load(WINDOW), split, SPLITS, BLOCK)
    place = OUT + (row * SPLITS + split) * 3
    tl.store(place, begin)
    tl.store(place + 1, end)
    tl.store(place + 2, live_splits(position, tl.load(WINDOW), SPLITS, BLOCK))


@pytest.mark.parametrize(("window", "splits"), [(1, 3), (2, 3), (16, 1), (17, 3), (39, 4), (UNBOUNDED, 3)])
def test_splits_share_what_the_predicate_lets_a_query_see(window: int, splits: int) -> None:
    """Every visible stored key in one split, in order; what is not live is empty."""
    positions = [0, 1, 7, 8, 9, 16, 25, 38, 39]
    out = torch.empty(len(positions), splits, 3, dtype=torch.int64)
    grid = (len(positions), splits)
    ranges_kernel[grid](torch.tensor(positions), torch.tensor(window), out, splits, 8)
    for position, (begins, ends, live) in zip(positions, out.transpose(1, 2).tolist(), strict=True):
        spans = [range(begin, end) for begin, end in zip(begins, ends, strict=True)]
        keys = [key for span in spans for key in span]
        assert keys == [key for key in range(position) if visible(position, key, window)]
        assert all(spans[1 : live[0]]), "a live split holds a key"
        assert not any(spans[live[0] :]), "no key is beyond the live splits"


@dataclass(frozen=True, kw_only=True)
class LatentCase:
    held: tuple[int, ...]
    heads: int = 4
    rank: int = 64
    rotary: int = 16
    window: int = UNBOUNDED
    dtype: torch.dtype = torch.float32

    def arguments(self) -> tuple[Tensor | float, ...]:
        draw = torch.Generator().manual_seed(sum(self.held) + self.rank)

        def noise(*shape: int) -> Tensor:
            return torch.randn(shape, generator=draw)

        batch, width = len(self.held), self.rank + self.rotary
        order = list(range(batch + 2))[::-1][:batch]
        pool = noise(batch + 2, C, width)
        for row, held in zip(order, self.held, strict=True):
            pool[row, held:] = torch.nan
        q, new = noise(batch, 1, self.heads, width).to(self.dtype), noise(batch, 1, width).to(self.dtype)
        positions, window = torch.tensor(self.held)[:, None], torch.tensor(self.window)
        return q, new, pool.to(self.dtype), torch.tensor(order), positions, window, width**-0.5, self.rank


LATENT_CASES = {
    "one token": LatentCase(held=(5,)),
    "first token": LatentCase(held=(0,)),
    "rows of other lengths": LatentCase(held=(16, 39, 3)),
    "window": LatentCase(held=(38, 4), window=6),
    "more heads than a tile": LatentCase(held=(21, 33), heads=18),
    "widths that are no power of two": LatentCase(held=(30,), rank=48, rotary=24),
    "half precision": LatentCase(held=(30, 1), dtype=torch.bfloat16),
    "as published": LatentCase(held=(20,), heads=2, rank=512, rotary=64),
}


@pytest.mark.parametrize("name", LATENT_CASES)
def test_latent_kernel_equals_the_definition(name: str) -> None:
    q, new, pool, rows, positions, window, scale, rank = LATENT_CASES[name].arguments()
    wanted_pool, found_pool = pool.clone(), pool.clone()
    fixed = (rows, positions, window, None, scale, rank)
    wanted = latent_reference(q.float(), new, wanted_pool, *fixed)
    found = attend_latent_splits(q, new, found_pool, rows, positions, window, scale, rank, TILING)
    assert found.shape == wanted.shape
    assert error(found, wanted) < (1e-5 if q.dtype is torch.float32 else 2**-7)
    torch.testing.assert_close(found_pool, wanted_pool, atol=0, rtol=0, equal_nan=True)


@pytest.fixture
def small_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=3)
    )
    monkeypatch.setattr(kernels, "shared_memory_bytes", lambda device: 232_448)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the kernels' entries that are called."""
    names: list[str] = []

    def recording(entry: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def run(*arguments: object) -> Tensor:
            names.append(entry.__name__)
            return entry(*arguments)

        return run

    for module, name in ((attention, "attend_splits"), (latent, "attend_latent_splits")):
        monkeypatch.setattr(module, name, recording(getattr(module, name)))
    return names


@pytest.mark.usefixtures("small_device")
def test_one_token_on_cuda_takes_the_kernel(launched: list[str]) -> None:
    arguments = Case(held=(30, 4), members=4).arguments()
    q, k_new, v_new, k_pool, v_pool, rows, positions, window, scale, softcap = arguments
    found = cuda.attend_cuda(
        q, k_new, v_new, k_pool.clone(), v_pool.clone(), rows, positions, window, None, scale, softcap
    )
    assert error(found, by_definition(arguments)[0]) < 1e-5

    q, new, pool, *rest = LatentCase(held=(30, 4)).arguments()
    wanted = latent_reference(q, new, pool.clone(), *rest[:3], None, *rest[3:])
    assert error(cuda.latent_cuda(q, new, pool.clone(), *rest[:3], None, *rest[3:]), wanted) < 1e-5
    assert launched == ["attend_splits", "attend_latent_splits"]


@pytest.mark.usefixtures("small_device")
@pytest.mark.parametrize("reason", ["no triton", "float64", "a wide head", "tokens apart"])
def test_what_the_kernel_cannot_honour_takes_another_way(
    reason: str, launched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    dim, dtype = (320 if reason == "a wide head" else 64), (torch.float64 if reason == "float64" else None)
    arguments = Case(held=(30, 4), members=4, dim=dim).arguments()
    q, k_new, v_new, k_pool, v_pool, rows, positions, window, scale, softcap = (
        x.to(dtype) if dtype and isinstance(x, Tensor) and x.is_floating_point() else x for x in arguments
    )
    if reason == "no triton":
        monkeypatch.setattr(kernels, "triton_runs", lambda: False)
    if reason == "tokens apart":
        k_pool, v_pool = (
            torch.stack((pool, pool), dim=-2).flatten(2, 3)[:, :, ::2] for pool in (k_pool, v_pool)
        )
    found = cuda.attend_cuda(q, k_new, v_new, k_pool, v_pool, rows, positions, window, None, scale, softcap)
    assert error(found, by_definition(arguments)[0]) < 1e-5
    assert launched == []


def test_cuda_implementations_are_registered() -> None:
    for name in ("attend", "attend_latent", "attend_expanded", "experts"):
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"fuel::{name}", "CUDA")
    assert attend.__module__ == "fuel_core.ops.cached"


def test_tiling_fills_the_device_and_no_more() -> None:
    """Splits follow the capacity until the multiprocessors are busy; more heads need fewer of them."""

    def tiling(**changes: int) -> SplitTiling:
        given = {"batch": 1, "groups": 8, "members": 4, "capacity": 32768, "columns": 256, "itemsize": 2}
        return split_tiling(**{**given, "processors": 132, **changes})

    assert tiling().splits == 32  # 8 * 33 programs are two for each of 132
    assert tiling(groups=2).splits == 128
    assert tiling(batch=32).splits == 2
    assert tiling(capacity=128).splits == 2
    assert tiling(capacity=1).splits == 1
    assert tiling(members=20).head_rows == 32
    assert tiling(columns=2048, itemsize=4).block_tokens == 16
