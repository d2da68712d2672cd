"""Tokens chosen behind a step, and the step that is launched before the host knows them.

Eager and captured on a tape; only the copies of ``torch.cuda`` themselves are missing.
"""

import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fuel_core.cache import Cache, KVBuffers
from fuel_core.decode import Backend, CudaGraphBackend, DecodeSession
from fuel_core.decode.token_choice import RowChoice
from fuel_core.decode.transfer import Readback
from fuel_core.errors import CapacityError, FuelWarning, RequestError, SessionBusy, TopologyChanged
from fuel_core.family import Family
from fuel_core.generate.sampling import Sampler, Sampling
from fuel_core.testing import Case, RecordingBackend
from fuel_core.testing.checks import EXACT, assert_close
from fuel_core.testing.dispatch import HOST_READ, dispatched
from fuel_core.testing.tape import TapeDevice

PROMPT = [5, 9, 40, 2, 77, 31]
GREEDY = [RowChoice()]
SAMPLINGS = [
    Sampling(),
    Sampling(temperature=1.2, seed=7),
    Sampling(temperature=1.2, top_k=9, seed=7),
    Sampling(temperature=1.4, top_k=50, top_p=0.9, min_p=0.01, seed=7),
]


@pytest.fixture
def case(qwen2: Family) -> Case:
    return Case.build(qwen2, "mixed-window")


@pytest.fixture(params=["eager", "captured"])
def backend(request: pytest.FixtureRequest) -> Backend:
    return RecordingBackend() if request.param == "eager" else captured(TapeDevice())


def captured(device: TapeDevice) -> CudaGraphBackend:
    return CudaGraphBackend(graphs=lambda _: device)


class Rows:
    """Rows that are continued by chosen tokens, in a session under test."""

    def __init__(self, session: DecodeSession, samplings: list[Sampling]) -> None:
        self.session = session
        self.samplers = [Sampler(sampling, choice) for choice, sampling in enumerate(samplings)]
        self.tokens: list[list[int]] = []
        for place, (cache, sampler) in enumerate(zip(session.caches, self.samplers, strict=True)):
            prompt = PROMPT[place:]
            self.tokens.append([*prompt, sampler(session.prefill(prompt, cache))])

    def step(self, ahead: bool = True) -> None:
        choices = [sampler.choice() for sampler in self.samplers]
        after = [sampler.choice(1) for sampler in self.samplers] if ahead else None
        newest = [[tokens[-1]] for tokens in self.tokens]
        chosen = self.session.step_chosen(newest, self.session.caches, choices, after)
        for tokens, sampler, (token, peak) in zip(self.tokens, self.samplers, chosen, strict=True):
            tokens.append(sampler.count(token, peak))

    def step_on_the_host(self) -> None:
        logits_BV = self.session.step([[tokens[-1]] for tokens in self.tokens])
        for tokens, sampler, logits_V in zip(self.tokens, self.samplers, logits_BV, strict=True):
            tokens.append(sampler(logits_V))


def check_goes_on(case: Case, session: DecodeSession, cache: Cache, steps: int = 3) -> None:
    """What a cache holds is what a fresh pass over its tokens would have."""
    for token in range(steps):
        logits = session.step([[token + 11]], (cache,))[0]
        assert_close(logits, case.one_shot(cache.token_ids)[-1], EXACT, f"{cache.length} tokens")


@pytest.mark.parametrize(
    "samplings", [*([sampling] for sampling in SAMPLINGS), SAMPLINGS[:3], SAMPLINGS], ids=len
)
def test_tokens_are_those_of_the_host(case: Case, backend: Backend, samplings: list[Sampling]) -> None:
    """Greedy, sampled and filtered rows, alone and together; three rows fill a captured batch of four."""
    rows = Rows(case.session(len(samplings), backend=backend), samplings)
    wanted = Rows(case.session(len(samplings)), samplings)
    for _ in range(40):
        rows.step()
        wanted.step_on_the_host()
    assert rows.tokens == wanted.tokens
    held = [cache.token_ids for cache in rows.session.caches]
    assert held == [tokens[:-1] for tokens in rows.tokens]
    assert (rows.session.counters.plans, rows.session.counters.discards) == (1, 0)
    assert rows.session.counters.replays == 41, "one is under way"


@pytest.mark.parametrize("sampling", SAMPLINGS[:2])
def test_a_step_is_launched_before_the_tokens_before_it_are_read(
    case: Case, sampling: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = RecordingBackend()
    right: Callable[[Readback], Tensor] = Readback.wait

    def wait(readback: Readback) -> Tensor:
        backend.events.append("read")
        return right(readback)

    monkeypatch.setattr(Readback, "wait", wait)
    rows = Rows(case.session(backend=backend), [sampling])
    for _ in range(3):
        rows.step()
    assert backend.events == ["plan", "replay", *["replay", "read"] * 3]
    assert len(set(backend.addresses)) == 1
    rows.step(ahead=False)
    assert backend.events[-2:] == ["read", "read"], "it was under way, and nothing follows"


def test_what_is_launched_reads_nothing_and_does_not_grow(case: Case) -> None:
    session = case.session()
    row = RowChoice(temperature=1.4, top_k=50, top_p=0.9, min_p=0.01, number=0.6)
    token = 5

    def step() -> None:
        nonlocal token
        ((token, _),) = session.step_chosen([[token]], session.caches, [row], [row])

    step()
    seen = [dispatched(step) for _ in range(3)]
    assert seen[0] == seen[1] == seen[2]
    assert HOST_READ not in seen[0]
    assert "fuel.attend.default" in seen[0]


def test_one_graph_follows_each_way_of_choosing(case: Case) -> None:
    device = TapeDevice()
    session = case.session(backend=captured(device))
    for sampling in (*SAMPLINGS, *SAMPLINGS):
        session.caches[0].reset()
        rows = Rows(session, [sampling])
        for _ in range(5):
            rows.step()
    assert (session.counters.plans, session.counters.captures) == (1, 1 + len(SAMPLINGS))
    session.caches[0].truncate(4)
    check_goes_on(case, session, session.caches[0])
    assert session.counters.captures == 1 + len(SAMPLINGS), "the step's own graph is as it was"


# What was launched and is not asked for.


def forget_the_end(session: DecodeSession) -> None:
    session.caches[0].truncate(session.caches[0].length - 3)


def begin_anew(session: DecodeSession) -> None:
    session.caches[0].reset()
    session.prefill([8, 1, 30])


def rewrite_to_the_same_length(session: DecodeSession) -> None:
    length = session.caches[0].length
    session.caches[0].truncate(3)
    session.prefill([4] * (length - 3))


def step_otherwise(session: DecodeSession) -> None:
    session.step([[3]])


def end_here(session: DecodeSession) -> None:
    """The next token is another one than was chosen."""


@pytest.mark.parametrize(
    "happens", [forget_the_end, begin_anew, rewrite_to_the_same_length, step_otherwise, end_here]
)
def test_a_discarded_step_leaves_no_trace(
    case: Case, backend: Backend, happens: Callable[[DecodeSession], None]
) -> None:
    """A text ended at a stop token; the next request, or the next turn of the chat, must not see the step
    that was on its way."""
    session = case.session(backend=backend)
    rows = Rows(session, [Sampling()])
    for _ in range(6):
        rows.step()
    happens(session)
    newest = rows.tokens[0][-1]
    asked = newest if happens is not end_here else (newest + 1) % 90
    ((token, peak),) = session.step_chosen([[asked]], session.caches, GREEDY, GREEDY)
    wanted = case.one_shot(session.caches[0].token_ids)[-1]
    assert token == int(wanted.argmax())
    assert peak == pytest.approx(float(wanted.max()), rel=1e-9)
    assert session.counters.discards == 1
    check_goes_on(case, session, session.caches[0])


@pytest.mark.parametrize("other", [Sampling(seed=2, temperature=3.0), Sampling(seed=7, temperature=0.2)])
def test_another_way_of_choosing_is_not_answered_from_what_is_under_way(
    case: Case, backend: Backend, other: Sampling
) -> None:
    session = case.session(backend=backend)
    rows = Rows(session, [SAMPLINGS[1]])
    for _ in range(3):
        rows.step()
    newest, sampler, twin = rows.tokens[0][-1], Sampler(other), Sampler(other)
    ((token, _),) = session.step_chosen([[newest]], session.caches, [sampler.choice()])
    assert token == twin(case.one_shot(session.caches[0].token_ids)[-1])
    assert session.counters.discards == 1


def test_rows_that_end_or_join_start_over(case: Case, backend: Backend) -> None:
    """A row's token went on in the place of its successor."""
    session = case.session(2, backend=backend)
    rows = Rows(session, [Sampling(), Sampling()])
    for _ in range(4):
        rows.step()
    first, second = session.caches
    newest = rows.tokens[1][-1]
    idle = first.token_ids[:]
    for step in range(3):
        choices = [RowChoice(), RowChoice()]
        newest = session.step_chosen([[0], [newest]], (None, second), choices, choices)[1][0]
        assert newest == int(case.one_shot(second.token_ids)[-1].argmax()), f"step {step}"
    assert first.token_ids == idle
    first.truncate(0)
    logits = session.prefill([60, 61, 62], first)
    for _ in range(3):
        tokens = [[int(logits.argmax())], [newest]]
        chosen = session.step_chosen(tokens, (first, second), choices, choices)
        for cache, (token, _) in zip((first, second), chosen, strict=True):
            assert token == int(case.one_shot(cache.token_ids)[-1].argmax())
        logits, newest = case.one_shot(first.token_ids)[-1], chosen[1][0]
    assert (session.counters.plans, session.counters.discards) == (1, 2)


def test_rows_in_another_order_are_another_request(case: Case, backend: Backend) -> None:
    session = case.session(2, backend=backend)
    rows = Rows(session, [Sampling(), Sampling()])
    rows.step()
    first, second = session.caches
    newest = [[rows.tokens[1][-1]], [rows.tokens[0][-1]]]
    chosen = session.step_chosen(newest, (second, first), GREEDY * 2)
    for cache, (token, _) in zip((second, first), chosen, strict=True):
        assert token == int(case.one_shot(cache.token_ids)[-1].argmax())


def test_a_row_that_moves_to_an_idle_place_is_another_request(case: Case, backend: Backend) -> None:
    session = case.session(2, backend=backend)
    cache, choices = session.caches[0], GREEDY * 2
    token = int(session.prefill(PROMPT, cache).argmax())
    for place in (0, 0, 1, 1, 0):
        caches = (cache, None) if place == 0 else (None, cache)
        chosen = session.step_chosen([[token], [token]], caches, choices, choices)
        token = chosen[place][0]
        assert token == int(case.one_shot(cache.token_ids)[-1].argmax())
    assert session.counters.discards == 2


def test_an_idle_row_stays_where_it_is(case: Case, backend: Backend) -> None:
    """Else it would attend to ever more of the spare row, at the cost of a row that runs."""
    session = case.session(2, backend=backend)
    caches, choices = (None, session.caches[0]), GREEDY * 2
    token = int(session.prefill(PROMPT).argmax())
    for _ in range(4):
        token = session.step_chosen([[0], [token]], caches, choices, choices)[1][0]
    plan = session.held_plan(caches)
    assert plan is not None
    assert plan.inputs.positions_BT.tolist() == [[0], [len(PROMPT) + 5]], "of the step after the launched one"


# Limits.


@pytest.mark.parametrize(("capacity", "limit"), [(16, "of 16"), (300, "257 tokens exceed the 256 positions")])
def test_nothing_is_launched_beyond_the_last_place(
    case: Case, backend: Backend, capacity: int, limit: str
) -> None:
    """Beyond a row's end lies the next row, which would be overwritten."""
    session = case.session(2, capacity=capacity, backend=backend)
    first, second = session.caches
    session.prefill([7, 8, 9], second)
    last = min(capacity, 256)
    token = int(session.prefill([1] * (last - 3), first).argmax())
    for _ in range(3):
        ((token, _),) = session.step_chosen([[token]], (first,), GREEDY, GREEDY)
    assert (first.length, session.counters.replays) == (last, 3)
    with pytest.raises(CapacityError, match=limit):
        session.step_chosen([[token]], (first,), GREEDY, GREEDY)
    assert session.counters.replays == 3
    check_goes_on(case, session, second)


def test_a_regime_is_crossed_by_the_host(qwen2: Family, backend: Backend) -> None:
    """LongRoPE redoes all keys at the crossing: a step launched beyond it would mix both tables."""
    raw = {
        **qwen2.tiny["dense"],
        "max_position_embeddings": 64,
        "rope_scaling": {
            "rope_type": "longrope",
            "short_factor": [1.0, 1.1, 1.2, 1.3],
            "long_factor": [1.5, 3.0, 6.0, 12.0],
            "original_max_position_embeddings": 16,
        },
    }
    case = Case.build(qwen2, "dense", raw=raw)
    session = case.session(backend=backend)
    rows = Rows(session, [Sampling()])
    for _ in range(16):
        rows.step()
        assert rows.tokens[0][-1] == int(case.one_shot(rows.tokens[0][:-1])[-1].argmax())
    assert (session.counters.reprefills, session.counters.discards, session.counters.plans) == (1, 0, 1)
    check_goes_on(case, session, session.caches[0])


# What a step may not be followed by.


def test_a_foreign_cache_is_served_token_by_token(case: Case) -> None:
    session = case.session(backend=captured(TapeDevice()))
    rows = Rows(session, [Sampling()])
    for _ in range(3):
        rows.step()
    foreign = case.pool().acquire()
    token = int(session.prefill(PROMPT, foreign).argmax())
    for _ in range(4):
        ((token, _),) = session.step_chosen([[token]], (foreign,), GREEDY, GREEDY)
        assert token == int(case.one_shot(foreign.token_ids)[-1].argmax())
    rows.step()
    assert rows.tokens[0][-1] == int(case.one_shot(rows.tokens[0][:-1])[-1].argmax())
    assert (session.counters.plans, session.counters.discards) == (1, 1)


def test_a_choice_that_cannot_be_captured_runs_behind_the_graph(case: Case) -> None:
    device = TapeDevice()
    session = case.session(backend=captured(device))
    rows, wanted = Rows(session, [SAMPLINGS[1]]), Rows(case.session(), [SAMPLINGS[1]])
    session.plan_ahead((1,))
    device.failure = torch.OutOfMemoryError("CUDA out of memory")
    with pytest.warns(FuelWarning, match=r"cannot capture the choice of tokens of 1 row.*678 bytes"):
        rows.step()
    wanted.step_on_the_host()
    for _ in range(5):
        rows.step()
        wanted.step_on_the_host()
    assert rows.tokens == wanted.tokens
    assert (session.counters.captures, device.releases) == (1, 1)


def test_a_plan_that_no_longer_fits_costs_one_eager_token(case: Case) -> None:
    backend = RecordingBackend({4: TopologyChanged("the graph's buffers moved")})
    session = case.session(backend=backend, strict=False)
    rows, wanted = Rows(session, [SAMPLINGS[1]]), Rows(case.session(), [SAMPLINGS[1]])
    for _ in range(8):
        rows.step()
        wanted.step_on_the_host()
    assert rows.tokens == wanted.tokens
    counters = session.counters
    assert (counters.plans, counters.drops, counters.fallbacks) == (2, 1, 1)


def test_replaced_buffers_void_what_is_under_way(case: Case, backend: Backend) -> None:
    session = case.session(backend=backend, strict=False)
    rows, wanted = Rows(session, [Sampling()]), Rows(case.session(), [Sampling()])
    for step in range(8):
        if step == 4:
            pool = session.pool
            pool.layers = tuple(KVBuffers(*(t.clone() for t in layer.tensors)) for layer in pool.layers)
        rows.step()
        wanted.step_on_the_host()
    assert rows.tokens == wanted.tokens
    assert (session.counters.plans, session.counters.fallbacks) == (2, 1)


def test_an_error_advances_nothing_and_the_call_may_be_made_again(case: Case) -> None:
    backend = RecordingBackend({4: MemoryError("out of memory")})
    session = case.session(backend=backend)
    rows, wanted = Rows(session, [SAMPLINGS[1]]), Rows(case.session(), [SAMPLINGS[1]])
    for _ in range(2):
        rows.step()
    held = session.caches[0].token_ids[:]
    with pytest.raises(MemoryError):
        rows.step()
    assert session.caches[0].token_ids == held
    for _ in range(4):
        rows.step()
    for _ in range(6):
        wanted.step_on_the_host()
    assert rows.tokens == wanted.tokens
    assert session.counters.plans == 1


def test_another_thread_is_refused(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    session = case.session(backend=RecordingBackend())
    rows = Rows(session, [Sampling()])
    inside, leave = threading.Event(), threading.Event()
    right: Callable[[Readback], Tensor] = Readback.wait

    def slow(readback: Readback) -> Tensor:
        inside.set()
        assert leave.wait(30)
        return right(readback)

    monkeypatch.setattr(Readback, "wait", slow)
    thread = threading.Thread(target=rows.step)
    thread.start()
    assert inside.wait(30)
    for call in (lambda: session.step([[1]]), lambda: session.step_chosen([[1]], session.caches, GREEDY)):
        with pytest.raises(SessionBusy):
            call()
    leave.set()
    thread.join()
    assert rows.tokens[0][-1] == int(case.one_shot(rows.tokens[0][:-1])[-1].argmax())


def test_requests_of_another_shape_are_refused(case: Case) -> None:
    session = case.session(2)
    for token_ids, choices, after in (
        ([[1], [2]], GREEDY, None),
        ([[1], [2]], GREEDY * 2, GREEDY),
        ([[1, 2], [1, 2]], GREEDY * 2, None),
    ):
        with pytest.raises(RequestError, match="one token and one choice a row of 2"):
            session.step_chosen(token_ids, session.caches, choices, after)
    assert [cache.length for cache in session.caches] == [0, 0]
