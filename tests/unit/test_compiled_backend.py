"""The compiled backend: one graph a structure and batch size, no compiling after planning, eager's answers."""

import gc
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fuel_core.decode import CompiledBackend, DecodeSession
from fuel_core.decode.backends.eager import EagerStep
from fuel_core.errors import FuelWarning, ReplanError
from fuel_core.family import Family
from fuel_core.testing import Case, checks
from fuel_core.testing.checks import EXACT, assert_close, gap

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, inside its tracer

Graphs = list[torch.fx.GraphModule]


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Graphs:
    """What is traced, run as it is instead of through inductor, which takes seconds a graph."""
    traced: Graphs = []

    def keep(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        traced.append(graph)
        return graph.forward

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", keep)
    return traced


@pytest.fixture
def case(qwen2: Family) -> Case:
    return Case.build(qwen2, "mixed-window")


def check_tokens(case: Case, session: DecodeSession, tokens: list[int], stop: int) -> None:
    wanted = case.one_shot(tokens)
    for position in range(session.caches[0].length, stop):
        logits = session.step([[tokens[position]]], session.caches[:1])[0]
        assert_close(logits, wanted[position], EXACT, f"token {position}")


@pytest.mark.parametrize("tiny", ["dense", "mixed-window", "yarn"])
def test_layers_of_one_structure_are_one_graph(qwen2: Family, tiny: str, graphs: Graphs) -> None:
    """Weights are inputs of the graph. As constants, each layer would be compiled by itself."""
    case = Case.build(qwen2, tiny)
    assert len(case.plan.layers) > 1
    session = case.session(backend=CompiledBackend())
    check_tokens(case, session, case.token_ids(seed=1), 4)
    assert len(graphs) == len(set(case.plan.layers)) == 1
    (graph,) = graphs
    sizes = sorted(p.numel() for p in case.decoder.layers[0].parameters())
    inputs = [n.meta["example_value"] for n in graph.graph.nodes if n.op == "placeholder"]
    assert [n.target for n in graph.graph.nodes if n.op == "get_attr"] == []
    assert not set(sizes) - {t.numel() for t in inputs if isinstance(t, Tensor)}


@pytest.mark.parametrize("batch", [1, 4])
def test_fifty_tokens_of_three_prompts_compile_once(qwen2: Family, batch: int, graphs: Graphs) -> None:
    """A Python number in the cache, or changing strides of the positions, made engines compile at every
    step. After planning a strict session would raise; the greedy tokens are eager's."""
    case = Case.build(qwen2, "mixed-window", dtype=torch.float32)
    session = case.session(batch, capacity=90, backend=CompiledBackend())
    eager = case.session(batch, capacity=90)
    for length in (5, 9, 33):
        tokens = {session: [], eager: []}  # type: ignore[var-annotated]
        for each, chosen in tokens.items():
            last = []
            for row, cache in enumerate(each.caches):
                cache.reset()
                last.append([int(each.prefill(case.token_ids(seed=length + row, count=length), cache).argmax())])
            for _ in range(50):
                last = each.step(last).argmax(-1, keepdim=True).tolist()
                chosen.append(last)
        assert tokens[session] == tokens[eager]
    assert len(graphs) == 1
    counters = session.counters
    assert (counters.plans, counters.replays, counters.fallbacks, counters.captures) == (1, 150, 0, 0)


@pytest.mark.parametrize(
    "check", [checks.swapped_cache_rebinds, checks.prefill_keeps_the_plan, checks.rows_are_independent]
)
def test_a_compiled_step_keeps_the_invariants(
    check: Callable[[Case], None], case: Case, graphs: Graphs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fuel_core.testing.case.EagerBackend", CompiledBackend)
    check(case)
    assert graphs


def test_rows_and_capacity_of_a_pool_cost_no_graph(case: Case, graphs: Graphs) -> None:
    """A run of other lengths makes a session of another capacity; a foreign pool may have more rows."""
    session = case.session(backend=CompiledBackend())
    tokens = case.token_ids(seed=1)
    check_tokens(case, session, tokens, 3)
    foreign = case.pool(rows=5).acquire()
    assert_close(session.step([[tokens[0]]], (foreign,))[0], case.one_shot(tokens[:1])[0], EXACT, "foreign")
    for capacity in (30, 50):
        check_tokens(case, case.session(capacity=capacity, rows=2, backend=CompiledBackend()), tokens, 4)
    assert len(graphs) == 1


def test_a_new_batch_size_adds_one_graph(case: Case, graphs: Graphs) -> None:
    session = case.session(rows=12, backend=CompiledBackend())
    for count, rows in enumerate(range(1, 12), start=1):
        session.step([[5]] * rows, session.caches[:rows])
        assert len(graphs) == count, f"{rows} rows"
    session.step([[5]], session.caches[:1])
    assert (session.counters.plans, len(graphs)) == (11, 11)


def test_a_replay_that_would_compile_is_an_error_of_a_strict_session(case: Case, graphs: Graphs) -> None:
    """Compiling in the middle of a stream stalled it for seconds, unseen. The token in hand is served,
    and the next one says that the plan is gone; without ``strict`` it plans again."""
    tokens = case.token_ids(seed=1)
    sessions = [case.session(backend=CompiledBackend(), strict=strict) for strict in (True, False)]
    for session in sessions:
        check_tokens(case, session, tokens, 3)
    torch._dynamo.reset()  # torch forgets what it compiled
    for session in sessions:
        check_tokens(case, session, tokens, 4)
        assert session.counters.fallbacks == 1
    strict, lenient = sessions
    with pytest.raises(ReplanError, match="batch size 1"):
        strict.step([[tokens[4]]])
    assert strict.caches[0].length == 4
    check_tokens(case, lenient, tokens, 7)
    assert (lenient.counters.plans, len(graphs)) == (2, 2)


class Reading(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * float(x.abs().amax().item() > 0)


def test_a_layer_that_cannot_be_compiled_is_named_once_and_served(case: Case, graphs: Graphs) -> None:
    for layer in case.decoder.layers:
        layer.feed_forward = Reading(layer.feed_forward)  # type: ignore[assignment, arg-type]
    session = case.session(rows=2, backend=CompiledBackend())
    tokens = case.token_ids(seed=1)
    named = r"'compiled'.*layers\.0\.feed_forward \(Reading\) at `return self.inner\(x\) \* float"
    with pytest.warns(FuelWarning, match=named):
        check_tokens(case, session, tokens, 1)
    check_tokens(case, session, tokens, 4)
    session.step([[1], [2]])
    assert (session.counters.plans, graphs) == (2, [])


def test_without_a_compiler_the_step_runs_eagerly(
    case: Case, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    from torch._inductor import config
    from torch._inductor.utils import fresh_cache

    session = case.session(backend=CompiledBackend())
    tokens = case.token_ids(seed=1)
    with fresh_cache(), config.patch({"cpp.cxx": ("no-such-compiler",)}):
        with pytest.warns(FuelWarning, match="no-such-compiler") as seen:
            check_tokens(case, session, tokens, 1)
        check_tokens(case, session, tokens, 4)
    assert len(seen) == 1
    assert isinstance(session.held_plan(session.caches).step, EagerStep)  # type: ignore[union-attr]


def test_compiled_models_are_freed(qwen2: Family, graphs: Graphs) -> None:
    """What is compiled outlives a model by design, since the next one of its structure uses it; the
    model, its caches and its session do not."""
    left: list[weakref.ref[object]] = []
    for seed in range(5):
        case = Case.build(qwen2, "dense", seed=seed)
        session = case.session(backend=CompiledBackend())
        with warnings.catch_warnings():
            check_tokens(case, session, case.token_ids(seed=1), 3)
        left += [weakref.ref(thing) for thing in (session, session.pool, case.decoder, session.backend)]
        del case, session
    gc.collect()
    assert [thing() for thing in left if thing() is not None] == []
    assert len(graphs) == 1


def test_inductor_gives_eagers_logits(qwen2: Family) -> None:
    """The bound that the backend states, through the real compiler."""
    case = Case.build(qwen2, "mixed-window", dtype=torch.float32)
    tokens = case.token_ids(seed=1)
    session, eager = case.session(backend=CompiledBackend()), case.session()
    for each in (session, eager):
        each.prefill(tokens[:20])
    for token in tokens[20:]:
        found, wanted = session.step([[token]]), eager.step([[token]])
        assert gap(found, wanted) <= 1e-5 * float(wanted.abs().max())
    assert (session.counters.plans, session.counters.fallbacks) == (1, 0)
