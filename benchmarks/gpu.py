"""Is a planned step right on this GPU, and how near does it come to the memory's bandwidth?

Correctness first, each check by name, going on after a failure; then speed, of random weights in published
shapes. The table is printed last; ``--output`` keeps a JSON file with every raw number, and a picture where
matplotlib is there. Runs from a checkout, installed or not, with torch, triton, safetensors, pydantic and
pluggy::

    PYTHONPATH=.:plugins/fuel-qwen/src:plugins/fuel-llama/src:plugins/fuel-deepseek/src \\
        python benchmarks/gpu.py --output results

The exit status is 0 if all that was started went well, 1 if a check or a measurement failed, and 2 without
a CUDA device.
"""

import argparse
import gc
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from gpu_bench import Bench
from gpu_budget import Budget
from gpu_check import Check, perform
from gpu_kernels import kernel_checks
from gpu_memory import memory_checks
from gpu_models import SHAPES, Shape, on_meta, step_weight_bytes
from gpu_report import Report, comparison, machine
from gpu_sessions import session_checks
from gpu_speed import CONTEXTS, CopyProbe, Effort, ModelBench, needed_bytes
from gpu_transformers import TransformersSide, importable

BUDGET_S = 450.0
"""Leaves half a minute of eight for what has been started when it ends."""

_BUILD_S, _PLAN_S, _CONTEXT_S = 4.0, 15.0, 8.0
"""Estimates, by which what would not be done in time is not begun: of making a model's weights, of the first
plan of a backend, and of one context."""

_COMPILE_S_PER_LAYER = 2.0
"""An estimate of torch.compile for a layer of transformers, which repeats in its graph."""

_WARM_UPS = 3
"""Runs of transformers before those that count."""


def main(words: Sequence[str] | None = None) -> int:
    asked = _arguments(words)
    shapes = [shape for shape in SHAPES if asked.models is None or shape.name in asked.models]
    if asked.dry_run:
        print(*dry_run(asked.only, shapes), sep="\n")
        return 0
    if not torch.cuda.is_available():
        print("benchmarks/gpu.py needs a CUDA device; --dry-run lists what it would do", file=sys.stderr)
        return 2
    bench, budget = Bench.cuda(), Budget(asked.budget_s)
    torch.cuda.set_device(bench.device)
    report = Report(machine=machine(bench.device), skipped=budget.skipped)
    print(", ".join(f"{name} {value}" for name, value in report.machine.items()), flush=True)
    run(bench, budget, report, asked.only, shapes, Effort(), asked.output)
    print(*report.lines(), sep="\n")
    return 1 if report.failed else 0


def run(
    bench: Bench,
    budget: Budget,
    report: Report,
    only: str | None,
    shapes: Sequence[Shape],
    effort: Effort,
    output: Path | None,
) -> None:
    """Fill a report; what fails is in it, and the run goes on."""
    if only != "speed":
        for check in checks(bench):
            if budget.allows(check.name, check.expected_s):
                outcome = perform(check)
                report.outcomes.append(outcome)
                print(outcome.line, flush=True)
        _keep(report, output)
    if only != "correctness":
        for shape in shapes:
            _measure(bench, budget, report, shape, effort, output)
        for shape in shapes:
            if shape.target is not None:
                _compare(bench, budget, report, shape, effort)
                _keep(report, output)
    if output is not None:
        report.draw(output)


def checks(bench: Bench) -> list[Check]:
    """Every check, in the order in which they run."""
    return [*kernel_checks(bench.device), *session_checks(bench), *memory_checks(bench)]


def dry_run(only: str | None, shapes: Sequence[Shape]) -> list[str]:
    """What a run would do on a CUDA device; touches none."""
    lines = []
    if only != "speed":
        named = checks(Bench.cuda())
        lines += [f"checks ({len(named)}):", *(f"  {check.name}" for check in named)]
    if only != "correctness":
        contexts = ", ".join(f"{name} ({held:,} tokens)" for name, held in CONTEXTS.items())
        lines += [f"speed at {contexts}; {', '.join(Bench.cuda().backends)}:"]
        lines += [f"  {shape_line(shape)}" for shape in shapes]
        compared = ", ".join(shape.name for shape in shapes if shape.target is not None)
        lines += [f"beside transformers (static cache, compiled), if importable: {compared or 'none'}"]
    return lines


def shape_line(shape: Shape) -> str:
    decoder = on_meta(shape.raw, torch.bfloat16)
    parameters = sum(parameter.numel() for parameter in decoder.parameters())
    cached = decoder.plan.cache.bytes_per_token(torch.bfloat16.itemsize)
    target = f"; target {shape.target:.0%} of copy bandwidth" if shape.target is not None else ""
    return (
        f"{shape.name:17} {parameters / 1e9:5.2f} billion parameters, {len(decoder.layers)} layers; a step "
        f"reads {step_weight_bytes(decoder) / 1e9:.2f} GB and {cached:,} bytes a held token{target}"
    )


def _measure(
    bench: Bench, budget: Budget, report: Report, shape: Shape, effort: Effort, output: Path | None
) -> None:
    """One shape's rows; what fails is in the report, and its memory is free again."""
    name = f"speed of {shape.name}"
    if not budget.allows(name, _BUILD_S + _PLAN_S + _CONTEXT_S) or not _fits(bench, budget, shape, effort):
        return
    try:
        _measure_contexts(bench, budget, report, shape, effort, output)
    except Exception as error:
        report.errors[name] = f"{type(error).__name__}: {error}"
    _release(bench)  # the error is gone by now, and with its traceback what it kept alive


def _measure_contexts(
    bench: Bench, budget: Budget, report: Report, shape: Shape, effort: Effort, output: Path | None
) -> None:
    """Build, plan every backend, measure each context."""
    name = f"speed of {shape.name}"
    model, probe = ModelBench(bench, shape, effort), CopyProbe(bench, effort)
    for backend in bench.backends:
        if budget.allows(f"{name}, {backend}", _PLAN_S):
            model.plan(backend)
    for context in effort.contexts:
        if budget.allows(f"{name}, {context}", _CONTEXT_S):
            rows = model.measure(context, probe)
            report.rows += rows
            _keep(report, output)
            for row in rows:
                print(f"{shape.name} {context} {row.backend}: {row.tokens_per_s:.1f} tokens/s", flush=True)


def _compare(bench: Bench, budget: Budget, report: Report, shape: Shape, effort: Effort) -> None:
    """The captured backends beside transformers, whose failure is none of ours: it is skipped then."""
    name = f"{shape.name} beside transformers"
    if not importable():
        return budget.skip(name, "transformers cannot be imported")
    layers = int(shape.raw["num_hidden_layers"])
    expected_s = 2 * _BUILD_S + _PLAN_S + _CONTEXT_S + _COMPILE_S_PER_LAYER * layers
    if not budget.allows(name, expected_s) or not _fits(bench, budget, shape, effort, copies=2):
        return None
    try:
        report.comparisons.append(_compared(bench, shape, effort))
    except Exception as error:
        budget.skip(name, f"{type(error).__name__}: {error}")
    return _release(bench)


def _compared(bench: Bench, shape: Shape, effort: Effort) -> dict[str, Any]:
    torch.compiler.reset()  # what was compiled for another shape made its sizes symbols, which are slower
    model = ModelBench(bench, shape, effort)
    captured = [backend for backend in bench.backends if backend != "eager"]
    for backend in captured:
        model.plan(backend)
    side = TransformersSide(
        shape.raw,
        bench.device,
        torch.bfloat16,
        held=next(iter(effort.contexts.values())),
        room=(_WARM_UPS + effort.rounds) * effort.tokens,
        compiled=effort.compiled,
    )
    return comparison(shape.name, model.against(side, captured), effort.tokens)


def _fits(bench: Bench, budget: Budget, shape: Shape, effort: Effort, copies: int = 1) -> bool:
    """Whether the device has memory for a shape; if not, it is noted as skipped."""
    if bench.device.type != "cuda":
        return True
    decoder = on_meta(shape.raw, torch.bfloat16)
    weights = sum(parameter.numel() for parameter in decoder.parameters()) * torch.bfloat16.itemsize
    rows = 2  # one and the spare
    cache = decoder.plan.cache.bytes_per_token(torch.bfloat16.itemsize) * effort.capacity * rows
    needed, free = needed_bytes(copies * weights, cache), torch.cuda.mem_get_info(bench.device)[0]
    if needed <= free:
        return True
    budget.skip(shape.name, f"it needs about {needed / 1e9:.0f} GB, {free / 1e9:.0f} GB are free")
    return False


def _release(bench: Bench) -> None:
    gc.collect()
    if bench.device.type == "cuda":
        torch.cuda.empty_cache()


def _keep(report: Report, output: Path | None) -> None:
    if output is not None:
        report.write(output)


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--dry-run", action="store_true", help="list checks and shapes; needs no GPU")
    arguments.add_argument("--output", type=Path, metavar="FOLDER", help="where JSON and PNG are written")
    arguments.add_argument("--only", choices=["correctness", "speed"])
    arguments.add_argument("--models", nargs="+", choices=[shape.name for shape in SHAPES], metavar="NAME")
    arguments.add_argument("--budget-s", type=float, default=BUDGET_S, metavar="SECONDS")
    return arguments.parse_args(words)


if __name__ == "__main__":
    raise SystemExit(main())
