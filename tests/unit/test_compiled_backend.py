"""The compiled backend: one graph a structure and batch size, none after planning, eager's answers."""

import gc
import os
import subprocess
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fuel_core.decode import CompiledBackend, CudaGraphBackend, DecodeSession
from fuel_core.decode.backends.compiled import CompiledBody, planned
from fuel_core.decode.backends.eager import EagerStep
from fuel_core.decode.token_choice import RowChoice
from fuel_core.errors import FuelWarning, ReplanError
from fuel_core.family import Family
from fuel_core.testing import Case, checks
from fuel_core.testing.checks import EXACT, assert_close, gap
from fuel_core.testing.tape import TapeDevice

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

    def keep(
        graph: torch.fx.GraphModule, inputs: list[Any], *, config_patches: dict[str, Any]
    ) -> Callable[..., Any]:
        assert config_patches == {"triton.cudagraphs": False}, "an environment may set it: nested captures"
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
    inputs = [str(node.target) for node in graph.graph.nodes if node.op == "placeholder"]
    assert [node.target for node in graph.graph.nodes if node.op == "get_attr"] == []
    weights = [name for name in inputs if "_parameters_" in name]
    assert len(weights) == len(list(case.decoder.layers[0].parameters()))


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
                last.append(
                    [int(each.prefill(case.token_ids(seed=length + row, count=length), cache).argmax())]
                )
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


def test_on_cuda_the_compiled_layers_are_captured(case: Case, graphs: Graphs) -> None:
    """As the backend does there, on a tape: one graph of a layer, within one graph of the step, and a
    second one of the step for rows of another pool."""
    device = TapeDevice()
    backend = CudaGraphBackend(planned(CompiledBody()), "compiled", lambda _: device)
    session = case.session(rows=3, backend=backend)
    tokens = case.token_ids(seed=1)
    check_tokens(case, session, tokens, 6)
    foreign = case.pool().acquire()
    for position, wanted in enumerate(case.one_shot(tokens)[:4]):
        assert_close(session.step([[tokens[position]]], (foreign,))[0], wanted, EXACT, "foreign")
    assert (len(graphs), device.batches, session.counters.captures) == (1, [1, 1], 2)
    on_cuda = torch.device("cuda")
    assert [CompiledBackend().batch_size(3, place) for place in (on_cuda, torch.device("cpu"))] == [4, 3]


@pytest.mark.parametrize("capturing", [False, True])
def test_chosen_tokens_are_eagers(case: Case, graphs: Graphs, capturing: bool) -> None:
    """The layers are compiled once, for the step; on a tape the choice behind it is captured as it is."""
    device = TapeDevice()
    backend = CudaGraphBackend(planned(CompiledBody()), "compiled", lambda _: device)
    session = case.session(backend=backend if capturing else CompiledBackend())
    eager, choices = case.session(), [RowChoice()]
    token = int(session.prefill([5, 9, 40]).argmax())
    eager.prefill([5, 9, 40])
    for _ in range(12):
        wanted = int(eager.step([[token]])[0].argmax())
        ((token, _),) = session.step_chosen([[token]], session.caches, choices, choices)
        assert token == wanted
    assert (len(graphs), session.counters.plans, session.counters.discards) == (1, 1, 0)
    assert device.batches == ([1, 1] if capturing else [])
    places = (torch.device("cuda"), torch.device("cpu"))
    assert [CompiledBackend().runs_ahead(place) for place in places] == [True, False]


class Branching(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        if x.abs().amax() > 0:
            x = x + 0
        return self.inner(x)


def test_a_layer_that_cannot_be_compiled_is_named_once_and_served(case: Case, graphs: Graphs) -> None:
    for layer in case.decoder.layers:
        layer.feed_forward = Branching(layer.feed_forward)  # type: ignore[assignment, arg-type]
    session = case.session(rows=2, backend=CompiledBackend())
    tokens = case.token_ids(seed=1)
    named = r"'compiled'.*layers\.0\.feed_forward \(Branching\) at `if x.abs\(\).amax\(\) > 0:`"
    with pytest.warns(FuelWarning, match=named):
        check_tokens(case, session, tokens, 1)
    check_tokens(case, session, tokens, 4)
    session.step([[1], [2]])
    assert (session.counters.plans, graphs) == (2, [])


def test_what_the_compiler_raised_is_said(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first line of what torch wraps it in names the wrapper alone."""

    def refuse(*_: object, **__: object) -> None:
        raise ValueError("no such instruction")

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", refuse)
    with pytest.warns(FuelWarning, match="ValueError: no such instruction. It runs eagerly"):
        case.session(backend=CompiledBackend()).step([[1]])


def test_without_a_compiler_the_step_runs_eagerly(case: Case) -> None:
    from torch._inductor import config
    from torch._inductor.utils import fresh_cache

    session = case.session(backend=CompiledBackend())
    tokens = case.token_ids(seed=1)
    with fresh_cache(), config.patch({"cpp.cxx": ("no-such-compiler",)}):
        with pytest.warns(FuelWarning, match="no-such-compiler") as seen:
            check_tokens(case, session, tokens, 1)
        check_tokens(case, session, tokens, 4)
    assert len([warning for warning in seen if warning.category is FuelWarning]) == 1
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


PROCESS = """
import torch
from torch._dynamo.utils import counters
from fuel_core.decode import CompiledBackend
from fuel_core.registry import Registry
from fuel_core.testing import Case

case = Case.build(Registry.discover().family("qwen2"), "dense", dtype=torch.float32)
session = case.session(backend=CompiledBackend())
session.step([[1]])
print(counters["inductor"]["fxgraph_cache_miss"], counters["inductor"]["fxgraph_cache_hit"])
"""


@pytest.mark.slow
def test_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    """Torch keeps what it compiled on disk, under TORCHINDUCTOR_CACHE_DIR; a graph that held an address
    of its process would miss there."""
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    found = [
        subprocess.run(
            [sys.executable, "-c", PROCESS], env=environment, capture_output=True, text=True, check=True
        ).stdout.split()
        for _ in range(2)
    ]
    assert found == [["1", "0"], ["0", "1"]]


@pytest.mark.slow
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
