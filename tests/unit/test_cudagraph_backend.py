"""The cudagraph backend on a tape: what is captured, rebound, staged, padded, refused and freed.

Only the calls of ``torch.cuda`` themselves are missing: a tape keeps addresses as a graph does.
"""

import gc
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn

from fuel_core.cache import KVBuffers
from fuel_core.decode import CudaGraphBackend, DecodeSession, backend_named, default_backend
from fuel_core.decode.backends.cudagraph import BATCH_SIZES
from fuel_core.decode.backends.eager import EagerStep
from fuel_core.decode.backends.staging import StagingRows
from fuel_core.decode.backends.static_tables import copy_of, overwrite
from fuel_core.errors import FuelWarning, ReplanError, RequestError, TopologyChanged
from fuel_core.family import Family
from fuel_core.plans import MaskPlan
from fuel_core.testing import Case, checks
from fuel_core.testing.checks import EXACT, assert_close, gap
from fuel_core.testing.tape import Tape, TapeDevice


@dataclass(frozen=True, kw_only=True)
class Taped(Case):
    """A case whose sessions capture on tapes."""

    def session(self, rows: int = 1, **options: object) -> DecodeSession:  # type: ignore[override]
        return super().session(rows, **{"backend": captured(TapeDevice()), **options})  # type: ignore[arg-type]


def captured(device: TapeDevice) -> CudaGraphBackend:
    return CudaGraphBackend(graphs=lambda _: device)


@pytest.fixture
def case(qwen2: Family) -> Case:
    return Case.build(qwen2, "mixed-window")


def check_tokens(case: Case, session: DecodeSession, tokens: list[int], stop: int) -> None:
    """Decode tokens up to ``stop`` on the first row, each held against the one-shot forward."""
    wanted = case.one_shot(tokens)
    for position in range(session.caches[0].length, stop):
        logits = session.step([[tokens[position]]], session.caches[:1])[0]
        assert_close(logits, wanted[position], EXACT, f"token {position}")


@pytest.mark.parametrize(
    "check",
    [
        checks.held_step_equals_eager_step,
        checks.swapped_cache_rebinds,
        checks.prefill_keeps_the_plan,
        checks.rows_are_independent,
        checks.bad_requests_change_nothing,
    ],
)
def test_a_captured_step_keeps_the_invariants(check: Callable[[Case], None], case: Case) -> None:
    check(Taped(family=case.family, tiny=case.tiny, raw=case.raw, decoder=case.decoder))


@pytest.mark.parametrize("tiny", ["dense", "mixed-window", "yarn"])
def test_a_replay_is_bitwise_the_eager_step(qwen2: Family, tiny: str, device: TapeDevice) -> None:
    case = Case.build(qwen2, tiny, dtype=torch.float32)
    tokens = case.token_ids(seed=1)
    session, eager = case.session(backend=captured(device)), case.session()
    for each in (session, eager):
        each.prefill(tokens[:9])
    for token in tokens[9:]:
        assert torch.equal(session.step([[token]]), eager.step([[token]]))
    assert (session.counters.captures, session.counters.copies, device.batches) == (1, 0, [1])


def test_a_replay_runs_no_python_of_the_model(
    case: Case, device: TapeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Non-vacuity of the tape: were it to call the model again, no stale address could show."""
    tokens = case.token_ids(seed=1)
    session = case.session(backend=captured(device))
    check_tokens(case, session, tokens, 3)
    wanted = case.one_shot(tokens)[3]
    monkeypatch.setattr(type(case.decoder), "embeddings", None)
    assert_close(session.step([[tokens[3]]])[0], wanted, EXACT, "without a model")


def test_a_second_request_of_another_length_captures_nothing(case: Case, device: TapeDevice) -> None:
    session = case.session(backend=captured(device))
    for seed, length in ((1, 40), (2, 5), (3, 33)):
        session.caches[0].reset()
        tokens = case.token_ids(seed=seed)
        session.prefill(tokens[:length])
        check_tokens(case, session, tokens, length + 6)
    session.caches[0].truncate(20)
    check_tokens(case, session, tokens, 26)
    assert (session.counters.plans, session.counters.captures, device.warm_ups) == (1, 1, 1)


def test_the_graph_keeps_its_answer_until_the_next_step(case: Case, device: TapeDevice) -> None:
    """As ``step`` documents: logits of a graph lie in one buffer, which the next replay overwrites."""
    session = case.session(backend=captured(device))
    first = session.step([[3]])
    kept = first.clone()
    second = session.step([[4]])
    assert first.data_ptr() == second.data_ptr()
    assert gap(kept, second) > 1e-3


# Other pools and other decoders.


def test_a_foreign_cache_is_copied_in_once_and_every_token_back(case: Case, device: TapeDevice) -> None:
    """The foreign cache is whole after each step: another session goes on with it, as if this one had
    written it directly."""
    tokens = case.token_ids(seed=4)
    session, other = case.session(backend=captured(device)), case.session(rows=2)
    session.prefill(case.token_ids(seed=5)[:30])
    check_tokens(case, session, case.token_ids(seed=5), 32)
    home = [tensor.clone() for layer in session.pool.layers for tensor in layer.tensors]
    foreign = other.caches[1]
    other.prefill(tokens[:20], foreign)
    wanted = case.one_shot(tokens)
    for position in range(20, 25):
        assert_close(session.step([[tokens[position]]], (foreign,))[0], wanted[position], EXACT, "staged")
    buffers = 2 * len(case.plan.layers)
    assert (session.counters.copies, session.counters.captures, session.counters.rebinds) == (buffers, 2, 1)
    assert_close(other.step([[tokens[25]]], (foreign,))[0], wanted[25], EXACT, "its own session")
    assert_close(session.step([[tokens[26]]], (foreign,))[0], wanted[26], EXACT, "staged again")
    assert session.counters.copies == 2 * buffers, "a cache that others wrote is copied anew"
    after = [tensor for layer in session.pool.layers for tensor in layer.tensors]
    assert all(torch.equal(a, b) for a, b in zip(home, after, strict=True)), "the plan's own rows changed"
    check_tokens(case, session, case.token_ids(seed=5), 36)
    assert session.counters.plans == 1


def test_staged_rows_follow_idle_places_and_rewritten_caches(case: Case, device: TapeDevice) -> None:
    """An idle row writes into its staging row; a cache that was cut and prefilled differently has as
    many tokens as before. Neither may answer from what was staged."""
    session = case.session(rows=2, backend=captured(device))
    pool = case.pool(rows=2)
    first, second = pool.acquire(), pool.acquire()
    streams = {first: case.token_ids(seed=6), second: case.token_ids(seed=7)}

    def step(*caches: object) -> None:
        tokens = [[0] if cache is None else [streams[cache][cache.length]] for cache in caches]  # type: ignore
        at = [0 if cache is None else cache.length for cache in caches]  # type: ignore[attr-defined]
        logits = session.step(tokens, caches)  # type: ignore[arg-type]
        for cache, position, found in zip(caches, at, logits, strict=True):
            if cache is not None:
                wanted = case.one_shot(streams[cache][: position + 1])[-1]  # type: ignore[index]
                assert_close(found, wanted, EXACT, f"position {position}")

    session.step([[1], [2]])
    for cache in (first, second):
        session.prefill(streams[cache][:12], cache)
    step(first, second)
    step(first, None)
    step(first, second)
    step(second, first)
    first.truncate(5)
    streams[first] = streams[first][:5] + case.token_ids(seed=8)
    session.prefill(streams[first][5:15], first)
    step(second, first)
    assert (session.counters.plans, session.counters.captures) == (1, 2)


def test_a_foreign_pool_is_served_eagerly_where_staging_finds_no_room(case: Case, device: TapeDevice) -> None:
    session = case.session(backend=captured(device))
    tokens = case.token_ids(seed=9)
    session.prefill(tokens[:10])
    check_tokens(case, session, tokens, 12)
    device.failure = torch.OutOfMemoryError("CUDA out of memory")
    foreign = case.pool().acquire()
    wanted = case.one_shot(tokens)
    with pytest.warns(FuelWarning, match="rows of another pool: .* 678 bytes are free"):
        assert_close(session.step([[tokens[0]]], (foreign,))[0], wanted[0], EXACT, "token 0")
    for position in range(1, 4):
        assert_close(session.step([[tokens[position]]], (foreign,))[0], wanted[position], EXACT, "eager")
    check_tokens(case, session, tokens, 15)
    assert (session.counters.plans, session.counters.captures) == (1, 1)


def test_another_decoder_of_the_weights_rebinds_its_windows(case: Case, device: TapeDevice) -> None:
    """Windows are data: a graph that kept the first model's would answer with them."""
    wider = case.with_plan(replace(case.plan, mask=MaskPlan((9, None), case.plan.mask.per_layer)))
    tokens = case.token_ids(seed=1)
    session = case.session(backend=captured(device))
    session.prefill(tokens[:20])
    check_tokens(case, session, tokens, 23)
    session.decoder = wider.decoder
    session.caches[0].reset()
    session.prefill(tokens[:20])
    check_tokens(wider, session, tokens, 26)
    counters = session.counters
    assert (counters.plans, counters.captures, counters.rebinds) == (1, 1, 1)
    assert counters.copies == len(case.plan.mask.windows) + len(case.plan.rope.variants)


def test_tables_of_another_form_are_not_squeezed_in(case: Case) -> None:
    """A graph reads as many frequencies as there were; a copy that broadcast would be wrong in silence."""
    static = copy_of(case.decoder.tables)
    assert overwrite(static, case.decoder.tables) == 3
    (rope,) = static.ropes
    for other in (
        replace(rope, magnitudes=torch.ones(1)),
        replace(rope, inverse_frequencies=rope.inverse_frequencies[:1]),
    ):
        with pytest.raises(TopologyChanged, match="another form"):
            overwrite(static, replace(static, ropes=(other,)))


# What voids a capture (reset and truncation, above, do not).


def test_replaced_buffers_and_weights_are_captured_anew(qwen2: Family, case: Case) -> None:
    """Graphs went on reading buffers that a clear() had replaced, and weights from before a swap."""
    device = TapeDevice()
    session = case.session(backend=captured(device), strict=False)
    tokens = case.token_ids(seed=1)
    session.prefill(tokens[:10])
    check_tokens(case, session, tokens, 12)
    pool = session.pool
    pool.layers = tuple(KVBuffers(*(t.clone() for t in layer.tensors)) for layer in pool.layers)
    check_tokens(case, session, tokens, 16)
    assert session.counters.captures == 2
    other = Case.build(qwen2, "mixed-window", seed=3)
    case.decoder.load_state_dict(other.decoder.state_dict(), assign=True)
    session.caches[0].reset()
    session.prefill(tokens[:10])
    check_tokens(other, session, tokens, 16)
    assert (session.counters.plans, session.counters.captures, session.counters.fallbacks) == (3, 3, 2)


def test_buffers_replaced_while_another_pool_is_bound_are_noticed(case: Case, device: TapeDevice) -> None:
    """The session checks the addresses of what is bound; the graph keeps those of its first pool."""
    session = case.session(backend=captured(device), strict=False)
    tokens = case.token_ids(seed=1)
    check_tokens(case, session, tokens, 3)
    foreign = case.pool().acquire()
    session.step([[1]], (foreign,))
    pool = session.pool
    pool.layers = tuple(KVBuffers(*(t.clone() for t in layer.tensors)) for layer in pool.layers)
    check_tokens(case, session, tokens, 7)
    assert (session.counters.plans, session.counters.fallbacks) == (2, 1)


def test_growth_and_replaced_parameters_are_declared_replans(case: Case, device: TapeDevice) -> None:
    session = case.session(backend=captured(device), capacity=20)
    session.step([[1]])
    larger = case.pool(capacity=40).acquire()
    with pytest.raises(ReplanError, match="batch size 1"):
        session.step([[1]], (larger,))
    session.step([[2]])
    case.decoder.to(torch.float64)
    session.step([[3]])
    with pytest.raises(ReplanError, match="batch size 1"):
        session.step([[4]])


# Batch sizes.


def test_sizes_planned_ahead_are_captured_largest_first_and_nothing_later(
    case: Case, device: TapeDevice
) -> None:
    session = case.session(rows=5, backend=captured(device))
    session.prefill([1, 2, 3], session.caches[1])
    before = [tensor[:5].clone() for layer in session.pool.layers for tensor in layer.tensors]
    session.plan_ahead((1, 2, 3, 8, 32, 4))
    assert device.batches == [32, 8, 4, 2, 1]
    after = [tensor[:5] for layer in session.pool.layers for tensor in layer.tensors]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True)), "a warm-up touched a row"
    for rows in (1, 2, 3, 5):
        session.step([[7]] * rows, session.caches[:rows])
    session.plan_ahead((4, 1))
    assert (session.counters.plans, session.counters.captures, session.counters.drops) == (5, 5, 0)
    with pytest.raises(RequestError, match="at least 1"):
        session.plan_ahead((0,))


@pytest.mark.parametrize("rows", [1, 3, 5, 7])
def test_rows_that_fill_a_batch_change_nothing(case: Case, device: TapeDevice, rows: int) -> None:
    session = case.session(rows=8, backend=captured(device))
    caches = session.caches[:rows]
    streams = [case.token_ids(seed=seed) for seed in range(rows)]
    for cache, stream in zip(caches, streams, strict=True):
        session.prefill(stream[: 4 + cache.row], cache)
    unused = [tensor[rows:-1] for layer in session.pool.layers for tensor in layer.tensors]
    for _ in range(3):
        at = [cache.length for cache in caches]
        logits = session.step([[s[p]] for s, p in zip(streams, at, strict=True)], caches)
        assert logits.shape == (rows, case.plan.vocab_size)
        for found, stream, position in zip(logits, streams, at, strict=True):
            assert_close(found, case.one_shot(stream)[position], EXACT, f"position {position}")
    used = {cache.row for cache in caches}
    for layer in session.pool.layers:
        for tensor in layer.tensors:
            assert all(not tensor[row].any() for row in range(8) if row not in used)
    assert unused
    assert device.batches == [min(size for size in BATCH_SIZES if size >= rows)]


def test_more_rows_than_the_largest_size_are_a_batch_of_their_own() -> None:
    device, backend = torch.device("cuda"), CudaGraphBackend()
    assert [backend.batch_size(rows, device) for rows in (1, 2, 3, 9, 32, 33)] == [1, 2, 4, 16, 32, 33]


# Failures.


class Reading(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * float(x.abs().amax().item() > 0)


class Selecting(Reading):
    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x).flatten()
        kept = y.abs().nonzero()
        return torch.zeros_like(y).index_put((kept[:, 0],), y[kept[:, 0]]).view(x.shape)


class Uploading(Reading):
    def forward(this, x: Tensor) -> Tensor:  # a message found no line of whoever says so
        return this.inner(x) * torch.tensor([1.0], dtype=x.dtype)


@pytest.mark.parametrize(
    ("layer", "operation"),
    [
        (Reading, r"\(Reading\) at `return self.inner\(x\) \* float\(x.abs\(\).amax\(\).item\(\) > 0\)`"),
        (Selecting, r"\(Selecting\) at `kept = y.abs\(\).nonzero\(\)`"),
        (Uploading, r"\(Uploading\) at `return this.inner\(x\) \* torch.tensor"),
    ],
)
def test_a_layer_that_cannot_be_captured_is_named_once_and_served(
    case: Case, device: TapeDevice, layer: type[Reading], operation: str
) -> None:
    """Engines fell back in silence, at less than half the speed, or were left with a dead stream."""
    block = case.decoder.layers[2]
    block.feed_forward = layer(block.feed_forward)  # type: ignore[assignment, arg-type]
    tokens = case.token_ids(seed=1)
    session = case.session(rows=2, backend=captured(device))
    session.prefill(tokens[:10])
    with pytest.warns(FuelWarning, match=r"qwen2: backend 'cudagraph'.*layers\.2\.feed_forward " + operation):
        check_tokens(case, session, tokens, 11)
    check_tokens(case, session, tokens, 14)
    session.step([[1], [2]])  # another batch size fails no less, and says nothing
    assert (session.counters.plans, session.counters.captures, device.batches) == (2, 0, [])
    assert device.releases == 1


def test_too_little_memory_is_said_in_bytes_and_smaller_batches_are_tried(
    case: Case, device: TapeDevice
) -> None:
    device.failure = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    session = case.session(rows=4, backend=captured(device))
    with pytest.warns(FuelWarning, match=r"4 row\(s\): .*12,345 bytes beside .* 678 bytes are free"):
        session.plan_ahead((1, 4))
    assert (device.batches, device.releases, session.counters.captures) == ([1], 1, 1)
    assert isinstance(session.held_plan(session.caches).step, EagerStep)  # type: ignore[union-attr]


def test_a_cuda_graph_needs_cuda(case: Case) -> None:
    """Refused before anything runs: a prompt used to be prefilled, and its first token shown, before."""
    with pytest.raises(RequestError, match="needs a CUDA device and the model is on cpu; choose 'compiled'"):
        case.session(backend=backend_named("cudagraph"))
    assert default_backend(torch.device("cpu")).name == "eager"
    assert default_backend(torch.device("cuda", 1)).name == "cudagraph"


# Memory.


def test_five_sessions_leave_nothing(case: Case) -> None:
    """Graphs and their pools outlived the engine that made them."""
    tokens = case.token_ids(seed=1)
    left: list[weakref.ref[object]] = []
    for _ in range(5):
        device = TapeDevice()
        session = case.session(rows=2, backend=captured(device))
        foreign = case.pool().acquire()
        with warnings.catch_warnings():
            check_tokens(case, session, tokens, 3)
            session.step([[1]], (foreign,))
            session.step([[1], [2]])
        left += [weakref.ref(thing) for thing in (session, session.pool, foreign.pool, device)]
        left += [weakref.ref(thing) for thing in gc.get_objects() if type(thing) in (Tape, StagingRows)]
        del session, foreign, device
    gc.collect()
    assert len(left) >= 5 * 8
    assert [thing() for thing in left if thing() is not None] == []


def test_staging_keeps_no_cache_alive(case: Case, device: TapeDevice) -> None:
    session = case.session(backend=captured(device))
    session.step([[1]])
    foreign = case.pool().acquire()
    session.step([[1]], (foreign,))
    session.step([[2]])
    gone = weakref.ref(foreign.pool)
    del foreign
    gc.collect()
    assert gone() is None
