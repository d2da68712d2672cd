"""fuel::attend: the CPU path against the definition, and what it must not touch.

Letters: B rows, T tokens, H query heads, G key/value heads, D head dim, C capacity.
"""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from fuel_core.errors import CapacityError, GeometryError
from fuel_core.ops import attend
from fuel_core.ops.cached import attend_cpu, attend_reference
from fuel_core.plans import UNBOUNDED, visible

H, G, D, C = 6, 2, 8, 24


@dataclass
class Call:
    """The arguments of one call; pools are fresh copies for each kernel."""

    arguments: tuple[Tensor, ...]
    k_pool: Tensor
    v_pool: Tensor
    rest: tuple[object, ...]

    def run(self, kernel: object) -> tuple[Tensor, Tensor, Tensor]:
        k_pool, v_pool = self.k_pool.clone(), self.v_pool.clone()
        out = kernel(*self.arguments, k_pool, v_pool, *self.rest)  # type: ignore[operator]
        return out, k_pool, v_pool


def call(
    lengths: list[int],
    tokens: int = 1,
    *,
    window: int = UNBOUNDED,
    softcap: float | None = None,
    dtype: torch.dtype = torch.float64,
    pool_dtype: torch.dtype | None = None,
) -> Call:
    draw = torch.Generator().manual_seed(len(lengths) * 100 + tokens)

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw, dtype=torch.float64).to(dtype)

    batch, rows = len(lengths), len(lengths) + 2
    k_pool, v_pool = noise(rows, G, C, D), noise(rows, G, C, D)
    order = list(range(rows))[::-1][:batch]
    for b, length in enumerate(lengths):
        # nothing that the row does not hold may be read as a number
        k_pool[order[b], :, length:], v_pool[order[b], :, length:] = torch.nan, torch.nan
    positions = torch.tensor([list(range(length, length + tokens)) for length in lengths])
    mask = None
    if tokens > 1:
        keys = torch.arange(lengths[0] + tokens)
        mask = visible(positions[0, :, None], keys, torch.tensor(window))
    return Call(
        (noise(batch, tokens, H, D), noise(batch, tokens, G, D), noise(batch, tokens, G, D)),
        k_pool.to(pool_dtype or dtype),
        v_pool.to(pool_dtype or dtype),
        (torch.tensor(order), positions, torch.tensor(window), mask, 0.3, softcap),
    )


CALLS = {
    "one token": call([5]),
    "first token": call([0]),
    "rows of other lengths": call([3, 11, 0]),
    "window": call([17, 3], window=4),
    "window of one": call([9], window=1),
    "softcap": call([7, 2], softcap=2.0),
    "softcap and window": call([12], window=5, softcap=0.7),
    "chunk": call([6], 9),
    "first chunk": call([0], 9),
    "chunk across a window": call([3], 9, window=4),
    "chunk with softcap": call([3], 9, window=6, softcap=1.5),
}


@pytest.mark.parametrize("name", CALLS)
def test_cpu_path_equals_the_definition(name: str) -> None:
    wanted, found = CALLS[name].run(attend_reference), CALLS[name].run(attend_cpu)
    for a, b in zip(wanted, found, strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=0, equal_nan=True)
    assert wanted[0].isfinite().all()


@pytest.mark.parametrize("name", CALLS)
def test_definition_equals_a_loop_over_keys(name: str) -> None:
    """The definition itself, held against scalar code that knows nothing of its tricks."""
    case = CALLS[name]
    out, k_pool, v_pool = case.run(attend_reference)
    q = case.arguments[0]
    rows, positions, window, _, scale, softcap = case.rest
    assert isinstance(rows, Tensor) and isinstance(positions, Tensor)  # noqa: PT018
    for b, row in enumerate(rows.tolist()):
        for t, position in enumerate(positions[b].tolist()):
            seen = [key for key in range(position + 1) if position - key < int(window)]  # type: ignore[call-overload]
            for head in range(H):
                group = head // (H // G)
                scores = torch.stack([(q[b, t, head] * k_pool[row, group, key]).sum() for key in seen])
                scores = scores * scale
                if softcap is not None:
                    scores = softcap * torch.tanh(scores / softcap)  # type: ignore[operator]
                wanted = (scores.softmax(0)[:, None] * v_pool[row, group, seen]).sum(0)
                torch.testing.assert_close(out[b, t, head], wanted, atol=1e-12, rtol=0)


def test_writes_its_slab_and_nothing_else() -> None:
    case = call([4, 9])
    _, k_pool, _ = case.run(attend_cpu)
    changed = (k_pool != case.k_pool) & ~(k_pool.isnan() & case.k_pool.isnan())
    places = {(row, place) for row, _, place, _ in changed.nonzero().tolist()}
    assert places == {(3, 4), (2, 9)}


def test_dispatches_to_the_cpu_path() -> None:
    case = CALLS["window"]
    torch.testing.assert_close(case.run(attend)[0], case.run(attend_cpu)[0], atol=0, rtol=0)


def test_pools_of_another_dtype() -> None:
    """A cache may be narrower than the activations: what is attended is widened for the step."""
    exact = call([9], dtype=torch.float32).run(attend_cpu)[0]
    narrow = call([9], dtype=torch.float32, pool_dtype=torch.bfloat16).run(attend_cpu)[0]
    assert narrow.dtype is torch.float32
    assert 0 < (exact - narrow).abs().max() < 0.05


@pytest.mark.parametrize("name", ["rows of other lengths", "chunk"])
def test_declares_truly_what_it_mutates_and_returns(name: str) -> None:
    """Without a truthful schema and shape a compiled or captured step reads stale buffers."""
    case = CALLS[name]
    arguments = (*case.arguments, case.k_pool.nan_to_num(), case.v_pool.nan_to_num(), *case.rest)
    torch.library.opcheck(
        torch.ops.fuel.attend.default, arguments, test_utils=("test_schema", "test_faketensor")
    )


def test_several_tokens_need_a_mask() -> None:
    """Without one the kernels disagreed: the definition stayed causal, the CPU path looked ahead."""
    case = call([3], 4)
    for mask in (None, case.rest[3]):
        one = case if mask is None else call([3])
        arguments = (*one.arguments, one.k_pool, one.v_pool, *one.rest[:3], mask, *one.rest[4:])
        with pytest.raises(GeometryError, match="mask"):
            attend(*arguments)  # type: ignore[arg-type]


def test_a_position_beyond_the_capacity_is_refused() -> None:
    """A slice past the end is empty: the write was dropped and stale keys were attended."""
    case = call([C])
    with pytest.raises(CapacityError, match=f"position {C} is beyond the capacity of {C}"):
        case.run(attend)
