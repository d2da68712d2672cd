"""The ladder and the session: which path serves a step, what voids a plan, what survives."""

import copy
from dataclasses import replace

import pytest
import torch

from fuel_core.cache import KVBuffers
from fuel_core.decode import DecodeSession, EagerBackend, backend_named
from fuel_core.errors import CapacityError, GeometryError, ReplanError, RequestError, TopologyChanged
from fuel_core.family import Family
from fuel_core.plans import MaskPlan
from fuel_core.testing import Case, RecordingBackend
from fuel_core.testing.checks import EXACT, assert_close, gap

TOKENS = [int(t) for t in torch.randint(0, 96, (72,), generator=torch.Generator().manual_seed(0))]


@pytest.fixture
def case(qwen2: Family) -> Case:
    return Case.build(qwen2, "mixed-window")


def decode(case: Case, session: DecodeSession, start: int, stop: int) -> None:
    """Decode TOKENS[start:stop] on the session's first row, each held against the one-shot forward."""
    wanted = case.one_shot(TOKENS)
    for position in range(start, stop):
        logits = session.step([[TOKENS[position]]])[0]
        assert_close(logits, wanted[position], EXACT, f"token {position}")


def test_the_first_token_plans_and_the_others_replay(case: Case) -> None:
    backend = RecordingBackend()
    session = case.session(backend=backend)
    session.prefill(TOKENS[:10])
    assert backend.events == []
    decode(case, session, 10, 14)
    assert backend.events == ["plan", *["replay"] * 4]
    assert session.counters.replays == 4


def test_a_rebind_overwrites_the_same_buffers(case: Case) -> None:
    backend = RecordingBackend()
    session = case.session(backend=backend)
    session.prefill(TOKENS[:10])
    decode(case, session, 10, 30)
    assert len(set(backend.addresses)) == 1


def test_phases_are_timed(case: Case) -> None:
    session = case.session()
    session.prefill(TOKENS[:10])
    session.step([[1]])
    phases = session.phases
    assert min(phases.prefill, phases.plan, phases.rebind, phases.replay) > 0
    assert phases.sample == 0


def test_topology_changed_costs_one_eager_token(case: Case) -> None:
    """The token is served without the plan, the next one plans again; nothing is answered twice."""
    backend = RecordingBackend({3: TopologyChanged("the graph's buffers moved")})
    session = case.session(backend=backend, strict=False)
    session.prefill(TOKENS[:10])
    decode(case, session, 10, 16)
    assert backend.events == ["plan", "replay", "replay", "replay", "plan", "replay", "replay", "replay"]
    counters = session.counters
    assert (counters.plans, counters.drops, counters.fallbacks) == (2, 1, 1)


def test_torchs_default_device_is_not_asked(case: Case) -> None:
    """The inputs of a step were made on it."""
    session, wanted = case.session(), case.one_shot(TOKENS[:3])
    for position in range(3):
        with torch.device("meta"):
            logits = session.step([[TOKENS[position]]])[0]
        assert_close(logits, wanted[position], EXACT, f"token {position}")


def test_any_other_error_surfaces_and_keeps_plan_and_cache(case: Case) -> None:
    """An error that dropped the session in silence turned every later token into a new plan."""
    backend = RecordingBackend({2: MemoryError("out of memory")})
    session = case.session(backend=backend)
    session.prefill(TOKENS[:10])
    decode(case, session, 10, 11)
    plan = session.held_plan(session.caches)
    with pytest.raises(MemoryError):
        session.step([[TOKENS[11]]])
    assert session.caches[0].token_ids == TOKENS[:11]
    decode(case, session, 11, 14)
    assert session.held_plan(session.caches) is plan


def test_a_failed_plan_leaves_cache_and_session_usable(case: Case) -> None:
    class Failing(EagerBackend):
        fails = True

        def plan(self, *args: object) -> object:  # type: ignore[override]
            if self.fails:
                raise MemoryError("no room to capture")
            return super().plan(*args)  # type: ignore[arg-type]

    backend = Failing()
    session = case.session(backend=backend)  # type: ignore[arg-type]
    session.prefill(TOKENS[:10])
    with pytest.raises(MemoryError):
        session.step([[TOKENS[10]]])
    backend.fails = False
    decode(case, session, 10, 14)


def test_replaced_buffers_void_the_plan(case: Case) -> None:
    """Clearing a cache by making new buffers left a graph that read the old ones."""
    session = case.session(strict=False)
    session.prefill(TOKENS[:10])
    decode(case, session, 10, 12)
    pool = session.pool
    assert all(isinstance(layer, KVBuffers) for layer in pool.layers)
    pool.layers = tuple(KVBuffers(*(t.clone() for t in layer.tensors)) for layer in pool.layers)
    decode(case, session, 12, 16)
    assert (session.counters.plans, session.counters.fallbacks) == (2, 1)


def test_replaced_weights_void_the_plan(case: Case) -> None:
    session = case.session(strict=False)
    session.prefill(TOKENS[:10])
    decode(case, session, 10, 12)
    case.decoder.to(torch.float64)
    decode(case, session, 12, 16)
    assert (session.counters.plans, session.counters.fallbacks) == (2, 1)


def test_a_strict_session_plans_each_batch_size_once(case: Case) -> None:
    session = case.session(rows=2)
    session.prefill(TOKENS[:10])
    decode_one = session.caches[:1]
    session.step([[1]], decode_one)
    session.step([[1], [2]])
    other = case.pool(capacity=40).acquire()
    with pytest.raises(ReplanError, match=r"qwen2: session.step: .*batch size 1"):
        session.step([[1]], (other,))
    assert other.length == 0
    assert session.counters.plans == 2
    session.step([[1]], decode_one)  # its own rows' plan is still there


def test_a_plan_that_fails_to_be_replaced_is_kept(case: Case) -> None:
    """A stale plan goes only when the new one is there, so a failure leaves the old rows served."""

    class FailsLater(RecordingBackend):
        def plan(self, *args: object) -> object:  # type: ignore[override]
            if "plan" in self.events:
                raise MemoryError("no room for a second graph")
            return super().plan(*args)  # type: ignore[arg-type]

    session = case.session(backend=FailsLater(), strict=False)  # type: ignore[arg-type]
    session.prefill(TOKENS[:10])
    decode(case, session, 10, 12)
    with pytest.raises(MemoryError):
        session.step([[1]], (case.pool(capacity=40).acquire(),))
    decode(case, session, 12, 15)
    assert (session.counters.plans, session.counters.drops) == (1, 0)


def test_idle_rows_keep_the_batch_size_and_touch_no_cache(case: Case) -> None:
    session = case.session(rows=3)
    for cache, tokens in zip(session.caches, (TOKENS[:5], TOKENS[5:9], TOKENS[9:20]), strict=True):
        session.prefill(tokens, cache)
    first, idle, last = session.caches
    before = [t[idle.row].clone() for layer in session.pool.layers for t in layer.tensors]
    for offset in range(3):
        rows = [[TOKENS[30 + offset]], [0], [TOKENS[40 + offset]]]
        logits = session.step(rows, (first, None, last))
        for row, held in ((0, first.token_ids), (2, last.token_ids)):
            assert_close(logits[row], case.one_shot(held)[-1], EXACT, f"row {row}")
    after = [t[idle.row] for layer in session.pool.layers for t in layer.tensors]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert (idle.length, session.counters.plans) == (4, 1)
    with pytest.raises(RequestError, match="needs a cache"):
        session.step([[1], [1]], (None, None))
    with pytest.raises(RequestError, match="idle rows stand only in steps of one token"):
        session.step([[1, 2], [1, 2]], (first, None))


def test_a_released_cache_is_refused(case: Case) -> None:
    """Its row may be another sequence's by now, which its writes would corrupt."""
    pool = case.pool(rows=2)
    released = pool.acquire()
    pool.release(released)
    owner = pool.acquire()
    assert owner.row == released.row
    session = case.session()
    with pytest.raises(RequestError, match="not released"):
        session.step([[1]], (released,))
    with pytest.raises(RequestError, match="not in use by this cache"):
        pool.release(released)
    session.step([[1]], (owner,))


@pytest.mark.parametrize(
    "ids", [[[1.7]], [[True]], [["a"]], [1], None, torch.tensor([[1.5]]), [[None]]], ids=repr
)
def test_what_is_no_token_id_is_refused(case: Case, ids: object) -> None:
    """A fraction was cut to a whole number in silence."""
    session = case.session()
    with pytest.raises(RequestError):
        session.step(ids)  # type: ignore[arg-type]
    assert session.caches[0].token_ids == []


def test_prefill_takes_a_tensor_and_refuses_empty_chunks(case: Case) -> None:
    session = case.session()
    logits = session.prefill(torch.tensor(TOKENS[:6]))
    assert_close(logits, case.one_shot(TOKENS[:6])[-1], EXACT, "a tensor")
    assert session.caches[0].token_ids == TOKENS[:6]
    for chunk in (0, -1):
        with pytest.raises(RequestError, match=f"chunk_tokens is {chunk}"):
            session.prefill([1], chunk_tokens=chunk)


def test_a_copy_of_a_decoder_watches_its_own_weights(case: Case) -> None:
    twin = copy.deepcopy(case.decoder)
    epochs = (case.decoder.weights.epoch, twin.weights.epoch)
    twin.load_state_dict(case.decoder.state_dict())
    assert (case.decoder.weights.epoch, twin.weights.epoch) == (epochs[0], epochs[1] + 1)


def test_another_capacity_is_another_plan(case: Case) -> None:
    session = case.session(strict=False)
    session.step([[TOKENS[0]]])
    other = case.pool(capacity=90).acquire()
    for position, logits in enumerate(case.one_shot(TOKENS)[:3]):
        assert_close(session.step([[TOKENS[position]]], (other,))[0], logits, EXACT, f"token {position}")
    assert (session.counters.plans, session.counters.drops) == (2, 1)


def test_models_over_one_weight_set_share_a_plan_and_keep_their_windows(case: Case) -> None:
    """Window widths are data: another width on the same weights needs no new plan, and is honoured."""
    wider = replace(case.plan, mask=MaskPlan((9, None), case.plan.mask.per_layer))
    twin = case.with_plan(wider)
    assert gap(case.one_shot(TOKENS)[20:], twin.one_shot(TOKENS)[20:]) > 1e-3
    session = case.session()
    session.prefill(TOKENS[:20])
    decode(case, session, 20, 23)
    session.decoder = twin.decoder
    cache = session.caches[0]
    cache.reset()
    session.prefill(TOKENS[:20])
    decode(twin, session, 20, 26)
    assert session.counters.plans == 1


def test_models_of_one_config_never_share_a_plan(qwen2: Family, case: Case) -> None:
    other = Case.build(qwen2, "mixed-window", seed=1)
    assert other.plan.structure == case.plan.structure
    session = case.session(strict=False)
    session.prefill(TOKENS[:10])
    decode(case, session, 10, 12)
    session.decoder = other.decoder
    session.caches[0].reset()
    session.prefill(TOKENS[:10])
    decode(other, session, 10, 14)
    assert (session.counters.plans, session.counters.drops) == (2, 1)


def test_rows_join_and_leave_a_batch(case: Case) -> None:
    """Prompts of 2, 5 and 11 tokens; one row ends early, a new one takes its slot. One position counter
    for a whole batch, or a slot that still held its last user, gave rows each other's words."""
    prompts = {
        name: TOKENS[start : start + n] for name, start, n in (("a", 0, 2), ("b", 9, 5), ("c", 20, 11))
    }
    streams = {name: [*prompt, *TOKENS[40:50]] for name, prompt in prompts.items()} | {"d": TOKENS[50:63]}
    wanted = {name: case.one_shot(tokens) for name, tokens in streams.items()}
    session = case.session(rows=3)
    rows = dict(zip("abc", session.caches, strict=True))
    for name, cache in rows.items():
        session.prefill(prompts[name], cache)

    def step() -> None:
        tokens = [[streams[name][cache.length]] for name, cache in rows.items()]
        at = [cache.length for cache in rows.values()]
        logits = session.step(tokens, tuple(rows.values()))
        for name, position, found in zip(rows, at, logits, strict=True):
            assert_close(found, wanted[name][position], EXACT, f"row {name} at token {position}")

    for _ in range(4):
        step()
    slot = rows.pop("b")
    step()
    slot.reset()
    session.prefill(streams["d"][:3], slot)
    rows["d"] = slot
    for _ in range(5):
        step()
    assert session.counters.plans == 2, "one plan for three rows, one for two"


def test_a_session_serves_one_request_after_another(case: Case) -> None:
    """A long request, a short one twice, the long one again: each as if alone. Engines gave the short
    one the long one's tail."""
    session = case.session()
    for tokens in (TOKENS[:40], TOKENS[50:55], TOKENS[50:55], TOKENS[:40]):
        session.caches[0].reset()
        logits = session.prefill(tokens[:-3])
        for token in tokens[-3:]:
            logits = session.step([[token]])[0]
        assert_close(logits, case.one_shot(tokens)[-1], EXACT, f"{len(tokens)} tokens")
    assert session.counters.plans == 1


def test_truncating_and_going_on(case: Case) -> None:
    """A prompt that is a prefix of what is held still needs its last token run for logits."""
    session = case.session()
    session.prefill(TOKENS[:30])
    session.caches[0].truncate(11)
    logits = session.step([[TOKENS[11]]])[0]
    assert_close(logits, case.one_shot(TOKENS[:12])[-1], EXACT, "after truncation")


@pytest.mark.parametrize(
    ("prompt", "new", "fits"), [(10, 6, True), (10, 7, False), (16, 0, True), (17, 0, False)]
)
def test_capacity_fence_posts(case: Case, prompt: int, new: int, fits: bool) -> None:
    """A cache of 16 tokens holds 16: more is refused before anything runs, and the session goes on."""
    session = case.session(capacity=16)

    def run() -> None:
        session.prefill(TOKENS[:prompt])
        for token in TOKENS[prompt : prompt + new]:
            session.step([[token]])

    if fits:
        run()
        assert session.caches[0].length == 16
    else:
        with pytest.raises(CapacityError, match="of 16"):
            run()
    session.caches[0].reset()
    session.prefill(TOKENS[:5])
    decode(case, session, 5, 9)


def test_the_trained_context_is_a_limit_of_its_own(case: Case) -> None:
    session = case.session(capacity=300)
    with pytest.raises(CapacityError, match="257 tokens exceed the 256 positions"):
        session.prefill([1] * 257)


def test_rows_of_several_pools_or_twice_the_same_are_refused(case: Case) -> None:
    session = case.session(rows=2)
    first, second = session.caches
    with pytest.raises(RequestError, match="different rows of one pool"):
        session.step([[1], [2]], (first, first))
    with pytest.raises(RequestError, match="different rows of one pool"):
        session.step([[1], [2]], (second, case.pool().acquire()))


def test_ragged_rows_are_refused(case: Case) -> None:
    with pytest.raises(RequestError, match=r"\[1, 2\] tokens.*no padding"):
        case.session(rows=2).step([[1], [2, 3]])


def test_a_cache_of_another_geometry_is_refused_on_every_path(qwen2: Family, case: Case) -> None:
    other = Case.build(qwen2, "head-dim").pool().acquire()
    session = case.session()
    session.step([[1]])
    for tokens in ([[1]], [[1, 2]]):
        with pytest.raises(GeometryError, match=r"k, v: 2 x 8.*layer 0.*k, v: 1 x 12"):
            session.step(tokens, (other,))
    with pytest.raises(GeometryError):
        session.prefill([1], other)


def test_several_rows_of_several_tokens(case: Case) -> None:
    session = case.session(rows=2)
    rows = [TOKENS[:6], TOKENS[6:12]]
    logits = session.step(torch.tensor(rows))
    for row in range(2):
        assert_close(logits[row], case.one_shot(rows[row])[-1], EXACT, f"row {row}")


def test_unknown_backend_names_the_known_ones() -> None:
    with pytest.raises(RequestError, match="'warp' is unknown; known are eager"):
        backend_named("warp")


def test_loading_a_state_dict_voids_the_plan(qwen2: Family, case: Case) -> None:
    """With ``assign=True`` the parameters are other tensors; a captured plan would read the old ones."""
    other = Case.build(qwen2, "mixed-window", seed=3)
    session = case.session(strict=False)
    session.prefill(TOKENS[:10])
    decode(case, session, 10, 12)
    case.decoder.load_state_dict(other.decoder.state_dict(), assign=True)
    session.caches[0].reset()
    session.prefill(TOKENS[:10])
    decode(other, session, 10, 14)
    assert (session.counters.plans, session.counters.fallbacks) == (2, 1)
