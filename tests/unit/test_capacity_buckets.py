"""Steps whose attention costs what a row can hold, on a tape and on the CPU: what they are shown of it."""

import pytest
import torch
from torch import Tensor

import fuel_core.step
from fuel_core.decode import CudaGraphBackend, DecodeSession, RowChoice
from fuel_core.decode.buckets import LEAST_TOKENS, CapacityBuckets
from fuel_core.errors import FuelWarning
from fuel_core.family import Family
from fuel_core.ops import follows_length, kernels
from fuel_core.plans.cache_spec import KVSlots, LatentSlots
from fuel_core.plans.model_plan import Numerics
from fuel_core.registry import Registry
from fuel_core.testing import Case
from fuel_core.testing.checks import EXACT, assert_close
from fuel_core.testing.tape import TapeDevice

CUDA = torch.device("cuda", 0)
FULL = Numerics(weights=torch.float32, activations=torch.float32, cache=torch.float32)
HALF = Numerics(weights=torch.bfloat16, activations=torch.bfloat16, cache=torch.bfloat16)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Attention follows no length, the smallest bucket has 16 tokens; returns the capacities attended to."""
    attend, capacities = fuel_core.step.attend, []

    def recording(q: Tensor, k_new: Tensor, v_new: Tensor, k_pool: Tensor, *rest: object) -> Tensor:
        capacities.append(k_pool.shape[2])
        return attend(q, k_new, v_new, k_pool, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr("fuel_core.decode.buckets.follows_length", lambda *_: False)
    monkeypatch.setattr("fuel_core.decode.buckets.LEAST_TOKENS", 16)
    monkeypatch.setattr(fuel_core.step, "attend", recording)
    return capacities


@pytest.fixture
def case(qwen2: Family) -> Case:
    return Case.build(qwen2, "mixed-window")


def captured(case: Case, device: TapeDevice, rows: int = 1) -> DecodeSession:
    return case.session(rows, backend=CudaGraphBackend(graphs=lambda _: device))


def check(case: Case, session: DecodeSession, tokens: list[int], stop: int) -> None:
    """Decode up to ``stop`` tokens on the first row, each held against the one-shot forward."""
    wanted = case.one_shot(tokens)
    for position in range(session.caches[0].length, stop):
        logits = session.step([[tokens[position]]], session.caches[:1])[0]
        assert_close(logits, wanted[position], EXACT, f"token {position}")


def test_sizes_are_powers_of_two_up_to_the_capacity(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    assert LEAST_TOKENS == 256
    monkeypatch.setattr("fuel_core.decode.buckets.follows_length", lambda *_: False)
    buckets = CapacityBuckets(case.plan, case.pool(capacity=3000))
    attended = (1, 256, 257, 512, 513, 2048, 2049, 3000)
    assert [buckets.size(tokens) for tokens in attended] == [256, 256, 512, 512, 1024, 2048, 3000, 3000]
    assert buckets.buffers(3000) is buckets.pool.layers


def test_where_lengths_are_followed_there_is_one_size(case: Case, device: TapeDevice) -> None:
    buckets = CapacityBuckets(case.plan, case.pool(capacity=3000))
    assert {buckets.size(tokens) for tokens in (1, 300, 3000)} == {3000}


def test_a_view_is_of_the_pools_own_memory(case: Case) -> None:
    pool = case.pool()
    for layer, view in zip(pool.layers, CapacityBuckets(case.plan, pool).buffers(16), strict=True):
        for whole, part in zip(layer.tensors, view.tensors, strict=True):
            assert part.data_ptr() == whole.data_ptr()
            assert part.shape[-2] == 16
            assert part.stride() == whole.stride()


def test_a_latents_view_cuts_tokens(qwen2: Family) -> None:
    case = Case.build(Registry.discover().family("deepseek_v2"), "plain-q")
    pool = case.pool()
    view = pool.layers[0].first(16)
    assert view.tensors[0].shape == (2, 16, pool.layers[0].tensors[0].shape[-1])


def test_a_bucket_is_captured_when_it_is_first_needed(
    case: Case, device: TapeDevice, shown: list[int]
) -> None:
    """And kept: a second request captures nothing, and no step attends to more than its bucket."""
    tokens = case.token_ids(seed=1)
    session = captured(case, device)
    check(case, session, tokens, 16)
    assert session.counters.captures == 1
    assert set(shown) == {16}
    check(case, session, tokens, 17)
    assert session.counters.captures == 2
    check(case, session, tokens, len(tokens))
    assert set(shown) == {16, 32, 64, 72}
    session.caches[0].reset()
    check(case, session, case.token_ids(seed=2), 70)
    assert (session.counters.plans, session.counters.captures) == (1, 4)


def test_the_planned_token_may_stand_anywhere(case: Case, device: TapeDevice, shown: list[int]) -> None:
    """A capture in a bucket that ends before it would write out of bounds."""
    tokens = case.token_ids(seed=1)
    session = captured(case, device)
    session.prefill(tokens[:40])
    shown.clear()
    check(case, session, tokens, 60)
    assert set(shown) == {64}


def test_the_longest_row_decides(case: Case, device: TapeDevice, shown: list[int]) -> None:
    tokens = case.token_ids(seed=1)
    session = captured(case, device, rows=2)
    session.prefill(tokens[:20], session.caches[1])
    shown.clear()
    session.step([[tokens[0]], [tokens[20]]])
    assert set(shown) == {32}


def test_d1_and_d2_see_the_same_bucket(case: Case, device: TapeDevice, shown: list[int]) -> None:
    """A kernel may sum wider views in another order: bitwise equality needs equal ones."""
    tokens = case.token_ids(seed=1)
    session, eager = captured(case, device), case.session()
    for each in (session, eager):
        each.prefill(tokens[:20])
    shown.clear()
    with torch.no_grad():
        planned = eager.step([[tokens[20]]]).clone()
        once = eager.run_once([[tokens[21]]], eager.caches)
    assert torch.equal(session.step([[tokens[20]]]), planned)
    assert torch.equal(session.step([[tokens[21]]]), once)
    assert set(shown) == {32}


def test_running_ahead_crosses_a_bucket(case: Case, device: TapeDevice, shown: list[int]) -> None:
    """The step that was launched ahead attends to one token more than the one that is asked for."""
    greedy = [RowChoice()]
    sessions = captured(case, device), captured(case, TapeDevice())
    found: list[list[int]] = []
    for session, after in zip(sessions, (greedy, None), strict=True):
        token, texts = 7, []
        for _ in range(50):
            ((token, _),) = session.step_chosen([[token]], session.caches, greedy, after)
            texts.append(token)
        found.append(texts)
    assert found[0] == found[1]
    assert sessions[0].counters.discards == 0
    assert sessions[0].counters.captures == 3 + 1, "three buckets and the choice behind them"
    check(case, sessions[0], [*sessions[0].caches[0].token_ids, 1, 2], 52)


def test_foreign_rows_are_served_from_buckets_too(case: Case, device: TapeDevice, shown: list[int]) -> None:
    tokens = case.token_ids(seed=1)
    wanted = case.one_shot(tokens)
    session, foreign = captured(case, device), case.pool().acquire()
    session.step([[1]])
    for position in range(40):
        logits = session.step([[tokens[position]]], (foreign,))[0]
        assert_close(logits, wanted[position], EXACT, f"token {position}")
    assert (session.counters.plans, session.counters.captures) == (1, 1 + 3)


def test_a_bucket_that_cannot_be_captured_is_served_all_the_same(
    case: Case, device: TapeDevice, shown: list[int]
) -> None:
    tokens = case.token_ids(seed=1)
    session = captured(case, device)
    check(case, session, tokens, 16)
    device.failure = torch.OutOfMemoryError("CUDA out of memory")
    with pytest.warns(FuelWarning, match=r"capture the step of up to 32 tokens of 1 row.*12,345 bytes"):
        check(case, session, tokens, 17)
    check(case, session, tokens, 40)
    assert (session.counters.captures, session.counters.plans, device.releases) == (2, 1, 1)


def test_which_attention_follows_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    family = Registry.discover().family("deepseek_v2")
    raw = family.tiny["plain-q"]
    config, _ = family.config.read(raw, source="test")
    auto, expanded = (
        family.plan(config, family.options(**options)).layers[0].mixer
        for options in ({}, {"mla": "expanded"})
    )
    monkeypatch.setattr(kernels, "shared_memory_bytes", lambda device: 101_376)
    narrow, wide = KVSlots(2, 256), KVSlots(2, 264)
    double = Numerics(weights=torch.float64, activations=torch.float64, cache=torch.float64)
    assert follows_length(None, narrow, HALF, CUDA)
    assert not follows_length(None, wide, HALF, CUDA)
    assert not follows_length(None, narrow, double, CUDA)
    assert follows_length(auto, LatentSlots(512, 64), HALF, CUDA)
    assert not follows_length(auto, LatentSlots(768, 64), HALF, CUDA)
    assert not follows_length(auto, LatentSlots(512, 64), FULL, CUDA), "more shared memory than there is"
    assert not follows_length(expanded, LatentSlots(512, 64), HALF, CUDA)
    assert follows_length(expanded, wide, double, torch.device("cpu"))
    assert not follows_length(None, narrow, HALF, torch.device("mps"))
    monkeypatch.setattr(kernels, "triton_runs", lambda: False)
    assert not follows_length(None, narrow, HALF, CUDA)


def test_foreign_rows_come_while_the_own_row_is_beyond_their_bucket(
    case: Case, device: TapeDevice, shown: list[int]
) -> None:
    """Their graph was warmed up where the own row stood, out of bounds: on a GPU, an assertion that ends
    the process."""
    tokens = case.token_ids(seed=1)
    session = captured(case, device)
    session.prefill(tokens[:40])
    check(case, session, tokens, 42)
    foreign = case.pool().acquire()
    assert_close(session.step([[tokens[0]]], (foreign,))[0], case.one_shot(tokens)[0], EXACT, "foreign")
    check(case, session, tokens, 44)
    assert (session.counters.plans, session.counters.captures) == (1, 2)


def test_long_foreign_rows_come_to_a_short_own_row(case: Case, device: TapeDevice, shown: list[int]) -> None:
    tokens = case.token_ids(seed=1)
    session, foreign = captured(case, device), case.pool().acquire()
    session.step([[1]])
    session.prefill(tokens[:40], foreign)
    assert_close(session.step([[tokens[40]]], (foreign,))[0], case.one_shot(tokens)[40], EXACT, "foreign")
    assert session.counters.captures == 2
