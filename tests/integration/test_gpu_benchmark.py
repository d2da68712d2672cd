"""The GPU benchmark where there is none: its checks on the CPU, its figures, its budget, its report.

Graphs are taped, as in the tests of the cudagraph backend; only ``torch.cuda`` itself is missing.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType, SimpleNamespace

import pytest
import torch
from torch import Tensor

from fuel_core.blocks import Linear, RMSNorm
from fuel_core.decode import CudaGraphBackend, DecodeSession, EagerBackend
from fuel_core.decode.backends import fallback
from fuel_core.decode.backends.staging import StagingRows
from fuel_core.ops import rms_norm
from fuel_core.testing.tape import TapeDevice

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
PLUGINS = ("fuel-qwen", "fuel-llama", "fuel-deepseek")

sys.path.insert(0, str(BENCHMARKS))  # scripts import their neighbours
import gpu  # noqa: E402
import gpu_kernels  # noqa: E402
import gpu_memory  # noqa: E402
import gpu_report  # noqa: E402
import gpu_transformers  # noqa: E402
from gpu_bench import Bench  # noqa: E402
from gpu_budget import Budget  # noqa: E402
from gpu_check import Check, Findings, Outcome, perform, relative_gap  # noqa: E402
from gpu_models import FAMILIES, SHAPES, Shape, on_meta, shape_decoder, step_weight_bytes  # noqa: E402
from gpu_report import Report, comparison, comparison_line, machine, table  # noqa: E402
from gpu_speed import CopyProbe, Effort, ModelBench, Row, long_context  # noqa: E402

BENCH = Bench(
    device=torch.device("cpu"),
    backends={"eager": EagerBackend, "cudagraph": lambda: CudaGraphBackend(graphs=lambda _: TapeDevice())},
    # a tape replays without the switch that the CPU's bfloat16 products are run under
    dtypes=(torch.float32,),
    request_tokens=(12, 9, 6),
)
CHECKS = {check.name: check for check in gpu.checks(BENCH)}
EFFORT = Effort(
    tokens=3,
    rounds=2,
    probe_bytes=1 << 16,
    probe_copies=2,
    host_steps=3,
    capacity=64,
    contexts=MappingProxyType({"8": 8, "40": 40}),
    compiled=False,
)
TINY_LLAMA = Shape(name="tiny", raw=FAMILIES["llama"].tiny["plain"], target=0.5)

ABSENT = """
import sys
from importlib.machinery import PathFinder

absent = set(
    "fuel_phi httpx huggingface_hub jinja2 matplotlib numpy packaging pytest rich sentencepiece tokenizers "
    "tqdm transformers typer yaml".split()
)
found = PathFinder.find_spec


def find_spec(name, path=None, target=None):
    return None if name.partition(".")[0] in absent else found(name, path, target)


PathFinder.find_spec = find_spec
"""
"""What is not on a machine with torch, triton, safetensors, pydantic and pluggy alone."""

DRY_THEN_ON_CPU = """
import torch
import gpu
from gpu_bench import Bench
from gpu_budget import Budget
from gpu_models import FAMILIES, Shape
from gpu_report import Report, machine
from gpu_speed import Effort
from fuel_core.decode import EagerBackend

assert gpu.main(["--dry-run"]) == 0
cpu = torch.device("cpu")
bench = Bench(device=cpu, backends={"eager": EagerBackend}, dtypes=(torch.float32,), request_tokens=(3, 2, 1))
every, once = gpu.checks, {}
for check in every(bench):  # one of a kind: what it imports while it runs is what matters here
    once.setdefault(check.name.partition(":")[0].partition(",")[0], check)
gpu.checks = lambda bench: list(once.values())
budget = Budget(60)
report = Report(machine=machine(bench.device), skipped=budget.skipped)
effort = Effort(tokens=2, rounds=1, probe_bytes=1024, host_steps=1, capacity=32, contexts={"4": 4})
shape = Shape(name="tiny", raw=FAMILIES["qwen3_moe"].tiny["plain"], target=0.5)
gpu.run(bench, budget, report, None, [shape], effort, None)
print(*report.lines(), sep="\\n")
assert not report.failed, report.record()
assert len(report.outcomes) == len(once) > 8 and len(report.rows) == 1
assert budget.skipped == ["tiny beside transformers: transformers cannot be imported"], budget.skipped
"""


def test_a_checkout_runs_with_no_other_package_and_a_dry_run_without_a_gpu() -> None:
    """A machine that is lent has no pip install: entry points, typer and rich are not there."""
    folders = [BENCHMARKS, ROOT, *(ROOT / "plugins" / plugin / "src" for plugin in PLUGINS)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders)), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", ABSENT + DRY_THEN_ON_CPU]
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_dry_run_lists_checks_and_shapes_and_no_figure_that_nobody_measured() -> None:
    listed = "\n".join(gpu.dry_run(None, SHAPES))
    for name in (*CHECKS, *(shape.name for shape in SHAPES), "32,640 tokens", "target 80% of copy bandwidth"):
        assert name in listed
    assert "tokens/s" not in listed
    only = "\n".join(gpu.dry_run("speed", SHAPES[:1]))
    assert "checks" not in only
    assert "llama" not in only


def test_without_a_device_the_run_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert not torch.cuda.is_available(), "this test is of machines without a GPU"
    assert gpu.main([]) == 2
    assert "--dry-run" in capsys.readouterr().err


# The checks, and that each can fail.


@pytest.mark.parametrize("name", CHECKS)
def test_check_passes(name: str) -> None:
    outcome = perform(CHECKS[name])
    assert outcome.passed, outcome.line
    assert outcome.numbers


def _off(found: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *arguments, **options: found(*arguments, **options) * 1.05


def _off_unless_exact(found: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A kernel that is off, beside a definition in float64 that is not."""
    return lambda x, *rest: found(x, *rest) * (1.0 if x.dtype is torch.float64 else 1.05)


def _off_for_one_token(forward: Callable[[RMSNorm, Tensor], Tensor]) -> Callable[[RMSNorm, Tensor], Tensor]:
    """The one-shot pass has many tokens, a cached step has one: that is off."""
    return lambda norm, x: forward(norm, x) * (1.001 if x.shape[1] == 1 else 1.0)


def _answer_late(patch: pytest.MonkeyPatch) -> None:
    """A backend that answers a step late."""
    replay = DecodeSession.replay

    def late(self: DecodeSession, plan: object, token_ids: object, caches: object) -> Tensor:
        logits = replay(self, plan, token_ids, caches)  # type: ignore[arg-type]
        kept, self.__dict__["kept"] = self.__dict__.get("kept", logits.clone()), logits.clone()
        return kept

    patch.setattr(DecodeSession, "replay", late)


def _write_neighbours(patch: pytest.MonkeyPatch) -> None:
    """Idle rows write to a row that is in use."""
    from fuel_core.cache import CachePool

    patch.setattr(CachePool, "spare_row", property(lambda pool: pool.rows - 1))


FAULTS: dict[str, tuple[str, Callable[[pytest.MonkeyPatch], object]]] = {
    "attention kernel": (
        "attend of one token equals its definition, float32",
        lambda patch: patch.setattr(gpu_kernels, "attend", _off(gpu_kernels.attend)),
    ),
    "prefill kernel": (
        "attend of several tokens equals its definition, float32 and bfloat16",
        lambda patch: patch.setattr(gpu_kernels, "attend", _off(gpu_kernels.attend)),
    ),
    "expert kernel": (
        "experts equals its definition, bfloat16",
        lambda patch: patch.setattr(gpu_kernels, "apply_experts", _off(gpu_kernels.apply_experts)),
    ),
    "norm kernel": (
        "fused norms, routing, gate and rotation equal their definitions, bfloat16",
        lambda patch: patch.setattr(gpu_kernels, "rms_norm", _off_unless_exact(gpu_kernels.rms_norm)),
    ),
    "stored sum": (
        "fused norms, routing, gate and rotation equal their definitions, float32",
        lambda patch: patch.setattr(
            gpu_kernels, "add_rms_norm", lambda x, y, weight, eps: (x - y, rms_norm(x + y, weight, eps))
        ),
    ),
    "late answers, no triton": (
        "without Triton a step is D1 bit for bit, from one bucket of capacity to the next: cudagraph",
        _answer_late,
    ),
    "late answers": ("held step is D1 bit for bit: llama, cudagraph, float32", _answer_late),
    "late answers, batch": (
        "a batch is D1 bit for bit, and idle rows change nothing: cudagraph",
        _answer_late,
    ),
    "late answers, sampled": ("sampled tokens are D1's: eager", _answer_late),
    "late answers, requests": (
        "three requests of other lengths under strict: one plan, D1's tokens: cudagraph",
        _answer_late,
    ),
    "late answers, ahead": ("batch sizes planned ahead serve every number of rows: cudagraph", _answer_late),
    "idle rows write": (
        "a batch is D1 bit for bit, and idle rows change nothing: cudagraph",
        _write_neighbours,
    ),
    "foreign rows stay away": (
        "another cache, of the same pool and of a foreign one, is re-bound under strict: cudagraph",
        lambda patch: patch.setattr(StagingRows, "load", lambda self, caches: 0),
    ),
    "old weights": (
        "replaced weights are planned anew, and answered from at once: cudagraph",
        lambda patch: patch.setattr("fuel_core.blocks.Decoder.weights_replaced", lambda self: None),
    ),
    "silent fallback": (
        "a layer that reads a value is warned of once and runs eagerly: cudagraph",
        lambda patch: patch.setattr(
            "fuel_core.decode.backends.fallback.warnings.warn", lambda *_, **__: None
        ),
    ),
    "warned of twice": (
        "a layer that reads a value is warned of once and runs eagerly: cudagraph",
        lambda patch: patch.setattr(fallback.Fallback, "serves", lambda self, decoder: False),
    ),
    "other numbers": (
        "logits are the CPU's: qwen2, float32",
        lambda patch: patch.setattr(RMSNorm, "forward", _off_for_one_token(RMSNorm.forward)),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_check_fails_where_something_is_wrong(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, break_it = FAULTS[fault]
    break_it(monkeypatch)
    outcome = perform(CHECKS[name])
    assert not outcome.passed
    assert outcome.line.startswith("FAIL")


def test_a_check_that_raises_is_a_fault_with_its_place_and_numbers_so_far() -> None:
    def raising(findings: Findings) -> None:
        findings.note("so far", 3)
        raise ValueError("no such kernel")

    outcome = perform(Check(name="a check", run=raising, expected_s=1.0))
    assert not outcome.passed
    assert outcome.numbers == {"so far": 3}
    assert "ValueError: no such kernel" in outcome.faults[0]
    assert "raising" in outcome.faults[0]


def test_nan_is_within_no_bound() -> None:
    findings = Findings()
    findings.within("gap", relative_gap(torch.tensor([torch.nan]), torch.tensor([1.0])), 1e9)
    findings.within("nan", float("nan"), 1.0)
    assert len(findings.faults) == 2


def test_checks_of_cuda_name_every_backend_and_compile_nothing_twice() -> None:
    names = [check.name for check in gpu.checks(Bench.cuda())]
    assert len(set(names)) == len(names)
    for part in ("compiled step", "memory is flat", "eager, bfloat16", "cudagraph, bfloat16"):
        assert any(part in name for name in names), part
    assert sum(check.expected_s for check in gpu.checks(Bench.cuda())) < 0.6 * gpu.BUDGET_S


# Models and bytes.


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("llama-3.2-1b", "llama-3.2-1b-instruct"),
        ("llama-3.1-8b", "llama-3.1-8b-instruct"),
        ("deepseek-v2-lite", "deepseek-v2-lite"),
        ("qwen3-30b-a3b", "qwen3-30b-a3b"),
    ],
)
def test_a_shape_states_what_its_published_config_states(name: str, published: str) -> None:
    config = json.loads((ROOT / "tests" / "fixtures" / "configs" / f"{published}.json").read_text())
    raw = next(shape.raw for shape in SHAPES if shape.name == name)
    assert {key: config.get(key) for key in raw} == raw


def test_a_step_reads_weights_once_without_an_untied_table() -> None:
    """Llama-3.1-8B by hand: attention, gate, up and down of 32 layers, the head, norms in float32."""
    layer = 4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14_336
    wanted = 2 * (32 * layer + 128_256 * 4096) + 4 * 65 * 4096
    shape = next(shape for shape in SHAPES if shape.name == "llama-3.1-8b")
    assert step_weight_bytes(on_meta(shape.raw, torch.bfloat16)) == wanted


def test_a_step_reads_the_chosen_experts_alone() -> None:
    """Qwen3-30B-A3B by hand: 8 of 128 experts, routers and norms in float32."""
    attention = 2048 * (4096 + 2 * 512) + 4096 * 2048
    experts = 8 * 3 * 768 * 2048
    wanted = 2 * (48 * (attention + experts) + 151_936 * 2048)
    wanted += 4 * (48 * (128 * 2048 + 2 * 2048 + 2 * 128) + 2048)
    shape = next(shape for shape in SHAPES if shape.name == "qwen3-30b-a3b")
    assert step_weight_bytes(on_meta(shape.raw, torch.bfloat16)) == wanted


def test_weights_are_filled_where_they_lie_in_the_dtypes_of_their_rules() -> None:
    decoder = shape_decoder(TINY_LLAMA, torch.device("cpu"), torch.bfloat16)
    assert all(parameter.device.type == "cpu" for parameter in decoder.parameters())
    for module in decoder.modules():
        if isinstance(module, RMSNorm):
            assert module.weight.dtype is torch.float32
            assert (module.weight == 1).all()
        elif isinstance(module, Linear):
            assert module.weight.dtype is torch.bfloat16
            assert 0.001 < module.weight.float().std() < 0.03
    again = shape_decoder(TINY_LLAMA, torch.device("cpu"), torch.bfloat16)
    assert torch.equal(decoder.embed.weight, again.embed.weight)


# Speed.


def test_one_plan_serves_every_context_and_the_cache_is_as_before() -> None:
    model = ModelBench(BENCH, TINY_LLAMA, EFFORT)
    for backend in BENCH.backends:
        model.plan(backend)
    rows = [row for context in EFFORT.contexts for row in model.measure(context, CopyProbe(BENCH, EFFORT))]
    assert [(row.context, row.backend) for row in rows] == [
        (context, backend) for context in EFFORT.contexts for backend in BENCH.backends
    ]
    assert model.cache.length == 40
    weights, token = step_weight_bytes(model.decoder), model.cache.pool.bytes_per_token
    for row in rows:
        assert row.step_bytes == weights + round((row.held + 1.5) * token)
        graphs = 2 if row.backend == "cudagraph" else 0  # the step, and the choice behind it
        assert (row.plans, row.captures, row.later_captures) == (1, graphs, 0)
        assert len(row.greedy_s) == len(row.copy_s) == 2
        assert len(row.step_s) == len(row.replay_s) == (2 if row.backend == "cudagraph" else 0)
        assert row.host_us > row.rebind_us > 0
        assert row.fell_back == []
        assert row.target == (0.5 if row.context == "8" else None)
        assert row.copy_bytes == 2 * 2 * (1 << 16)


def test_a_backend_that_falls_back_is_shown_as_such() -> None:
    failing = lambda _: TapeDevice(failure=RuntimeError("no stream"))  # noqa: E731
    bench = replace(BENCH, backends={"cudagraph": lambda: CudaGraphBackend(graphs=failing)})
    model = ModelBench(bench, TINY_LLAMA, EFFORT)
    model.plan("cudagraph")
    row = model.measure("8", CopyProbe(bench, EFFORT))[0]
    assert "no stream" in row.fell_back[0]
    assert "ran eagerly" in table([row])[-1]


def test_the_other_side_decodes_until_its_cache_is_full() -> None:
    pytest.importorskip("transformers")
    side = gpu_transformers.TransformersSide(
        TINY_LLAMA.raw, torch.device("cpu"), torch.float32, held=8, room=5, compiled=False
    )
    assert side.run(4).shape == (1, 1)
    with pytest.raises(AssertionError, match="has room for 1"):
        side.run(2)


# A whole run, its budget and its report.


def made_up(backend: str = "cudagraph", **changes: object) -> Row:
    """2 GB a step at 10 steps in 10 ms, where copies move 40 GB in 10 ms: half of copy bandwidth."""
    row = Row(
        model="llama-3.1-8b",
        context="128",
        held=128,
        backend=backend,
        tokens=10,
        greedy_s=[0.010, 0.020, 0.005],
        step_s=[0.009, 0.009, 0.009],
        replay_s=[0.008, 0.016, 0.004],
        copy_s=[0.010, 0.020, 0.005],
        copy_bytes=40_000_000_000,
        step_bytes=2_000_000_000,
        host_us=42.0,
        rebind_us=20.0,
        fell_back=[],
        plans=1,
        captures=1,
        later_captures=0,
        target=0.8,
    )
    return replace(row, **changes)  # type: ignore[arg-type]


def test_shares_are_of_the_copies_in_the_same_round() -> None:
    row = made_up()
    assert row.tokens_per_s == pytest.approx(1000)
    assert row.gb_per_s == pytest.approx(2000)
    assert row.share == pytest.approx(0.5)  # in every round, though the machine's speed moved fourfold
    assert row.replay_share == pytest.approx(0.625)
    assert made_up("eager", step_s=[], replay_s=[]).replay_share is None


def test_the_table_holds_targets_beside_what_was_measured() -> None:
    missed, met, eager = table(
        [made_up(), made_up(target=0.5, host_us=61.0, later_captures=1, captures=2), made_up("eager")]
    )[1:]
    assert "share 80% missed, host 60 us met" in missed
    assert "share 50% met, host 60 us missed" in met
    assert " 1+1 " in met
    assert "met" not in eager
    assert table([]) == []


def test_a_long_context_is_held_against_what_its_bytes_explain() -> None:
    far = made_up(context="32k", held=32_640, step_bytes=4_000_000_000, greedy_s=[0.022] * 3)
    (found,) = long_context([made_up(), made_up("eager"), far, replace(far, backend="eager")])
    assert found["times_explained"] == pytest.approx(1.1)
    assert found["times_explained_by_replays"] == pytest.approx(0.5)
    assert long_context([made_up()]) == []


def test_a_comparison_is_by_rounds() -> None:
    seconds = {"transformers": [2.0, 4.0, 3.0], "cudagraph": [1.0, 2.0, 2.0], "compiled": [4.0, 8.0, 6.0]}
    found = comparison("m", seconds, tokens=10)
    assert found["times_as_fast"] == {"cudagraph": 2.0, "compiled": 0.5}
    assert "cudagraph 2.00 times as fast, compiled 0.50 times as fast (met: ahead)" in comparison_line(found)
    assert "(missed: ahead)" in comparison_line(comparison("m", {**seconds, "cudagraph": [9.0] * 3}, 10))


def new_report(budget: Budget) -> Report:
    return Report(machine=machine(torch.device("cpu")), skipped=budget.skipped)


def test_a_run_keeps_raw_numbers_and_a_picture_with_the_table_last(tmp_path: Path) -> None:
    budget, folder = Budget(60.0), tmp_path / "results"
    report = new_report(budget)
    gpu.run(BENCH, budget, report, "speed", [TINY_LLAMA], EFFORT, folder)
    written = json.loads((folder / "gpu.json").read_text())
    assert not written["failed"]
    assert [len(row["greedy_s"]) for row in written["rows"]] == [2] * 4
    assert {"share", "tokens_per_s", "host_us", "copy_s"} <= set(written["rows"][0])
    assert {"torch", "triton", "driver", "commit", "date", "command"} <= set(written["machine"])
    assert written["comparisons"][0]["seconds"].keys() == {"transformers", "cudagraph"}
    assert report.lines()[-5:] == table(report.rows)
    if (folder / "gpu.png").exists():
        assert (folder / "gpu.png").read_bytes().startswith(b"\x89PNG")


def test_the_picture_is_drawn_where_matplotlib_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = new_report(Budget(1.0))
    report.rows = [made_up(), made_up("eager"), made_up("compiled", context="4k", target=None)]
    monkeypatch.setattr(gpu_report, "find_spec", lambda name: None)
    assert not report.draw(tmp_path)
    monkeypatch.undo()
    pytest.importorskip("matplotlib")
    assert report.draw(tmp_path)
    assert (tmp_path / "gpu.png").read_bytes().startswith(b"\x89PNG")


def test_a_spent_budget_starts_nothing_and_says_what_was_skipped() -> None:
    now = [0.0]
    budget = Budget(10.0, clock=lambda: now[0])
    assert budget.allows("first", 4.0)
    now[0] = 7.0
    assert not budget.allows("second", 4.0)
    assert budget.allows("third", 3.0)
    assert budget.skipped == ["second: about 4 s of the 10 s, 7 s are spent"]

    report = new_report(spent := Budget(0.0))
    gpu.run(BENCH, spent, report, None, [TINY_LLAMA], EFFORT, None)
    assert not report.outcomes
    assert not report.rows
    for name in (*CHECKS, "speed of tiny", "tiny beside transformers"):
        assert any(each.startswith(name) for each in report.skipped), name
    assert all(f"skipped: {each}" in report.lines() for each in report.skipped)
    assert not report.failed


def test_a_failed_measurement_is_reported_and_the_next_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    report = new_report(budget := Budget(60.0))
    monkeypatch.setattr(gpu, "importable", lambda: False)
    broken = Shape(name="broken", raw={**TINY_LLAMA.raw, "num_hidden_layers": "three"}, target=None)
    gpu.run(BENCH, budget, report, "speed", [broken, TINY_LLAMA], EFFORT, None)
    assert list(report.errors) == ["speed of broken"]
    assert {row.model for row in report.rows} == {"tiny"}
    assert report.failed
    assert budget.skipped == ["tiny beside transformers: transformers cannot be imported"]


def test_a_failed_check_fails_the_run_after_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(findings: Findings) -> None:
        findings.require(False, "it is off")

    def passing(findings: Findings) -> None:
        findings.equal("plans", 1, 1)

    named = [Check(name=f"{run.__name__} check", run=run, expected_s=0.0) for run in (failing, passing)]
    monkeypatch.setattr(gpu, "checks", lambda bench: named)
    report = new_report(budget := Budget(60.0))
    gpu.run(BENCH, budget, report, "correctness", [TINY_LLAMA], EFFORT, None)
    assert [outcome.passed for outcome in report.outcomes] == [False, True]
    assert report.failed
    assert {"checks: 1 of 2 passed", "  FAIL failing check"} <= set(report.lines())
    assert isinstance(report.outcomes[0], Outcome)


# What asks a CUDA device, over stand-ins for its numbers.


def test_memory_is_checked_on_cuda_alone() -> None:
    assert not any("memory" in name for name in CHECKS)


@pytest.mark.parametrize(("leak", "passes"), [(0, True), (5_000_000, False)])
def test_memory_that_grows_with_each_cycle_is_a_fault(
    leak: int, passes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peak of 1 GB, of which 5 MB stay after each cycle."""
    cycles = []
    monkeypatch.setattr(gpu_memory, "CYCLED", TINY_LLAMA)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", cycles.append)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 1_000_000_000)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(gpu_memory.gc, "collect", lambda: 0)  # slow beside all that tests import
    for name in ("memory_allocated", "memory_reserved"):
        monkeypatch.setattr(torch.cuda, name, lambda device: 1_000_000 + leak * len(cycles))
    run = partial(gpu_memory.flat_memory, BENCH)
    outcome = perform(Check(name="memory", run=run, expected_s=0.0))
    assert len(cycles) == 5
    assert outcome.passed == passes, outcome.line
    assert outcome.numbers["allocated: growth over cycles 2 to 5"] == pytest.approx(4 * leak / 1e9)


def test_a_compiled_step_is_held_to_its_bound() -> None:
    """Over tapes, whose bfloat16 differs by the CPU's other kernels: that is within the bound."""
    bench = replace(BENCH, backends={**BENCH.backends, "compiled": BENCH.backends["cudagraph"]})
    named = [check for check in gpu.checks(bench) if check.name.startswith("compiled step")]
    assert len(named) == 5
    for check in named:
        assert perform(check).passed


def test_a_compiled_step_that_is_off_or_was_not_compiled_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    failing = lambda _: TapeDevice(failure=RuntimeError("no compiler"))  # noqa: E731
    bench = replace(BENCH, backends={"compiled": lambda: CudaGraphBackend(graphs=failing)})
    check = next(check for check in gpu.checks(bench) if check.name.startswith("compiled step"))
    assert "no compiler" in perform(check).line
    bench = replace(BENCH, backends={"compiled": BENCH.backends["cudagraph"]})
    check = next(check for check in gpu.checks(bench) if check.name.startswith("compiled step"))
    _answer_late(monkeypatch)
    assert "largest gap" in perform(check).faults[0]


def test_the_backends_on_cuda_are_those_of_their_names() -> None:
    bench = Bench.cuda()
    assert {name: make().name for name, make in bench.backends.items()} == {
        name: name for name in ("eager", "cudagraph", "compiled")
    }
    assert bench.bitwise == ("eager", "cudagraph")
    assert [bench.captures(name) for name in bench.backends] == [0, 1, 1]


def test_a_shape_that_does_not_fit_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Qwen3-30B-A3B: 61 GB of weights and 6 GB of cache, an eighth more is asked for."""
    shape, bench = SHAPES[-1], replace(BENCH, device=torch.device("cuda", 0))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (80_000_000_000, 0))
    assert gpu._fits(bench, Budget(1.0), shape, Effort())
    assert not gpu._fits(bench, budget := Budget(1.0), shape, Effort(), copies=2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (70_000_000_000, 0))
    assert not gpu._fits(bench, budget, shape, Effort())
    assert budget.skipped[-1] == "qwen3-30b-a3b: it needs about 76 GB, 70 GB are free"


def test_a_machine_is_described_by_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(name="A GPU", total_memory=7, multi_processor_count=3)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    found = machine(torch.device("cuda", 0))
    assert (found["device"], found["memory_bytes"], found["processors"]) == ("A GPU", 7, 3)
    assert found["torch"] == torch.__version__
