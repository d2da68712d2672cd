"""Whether a session gives back what it took, over cycles of build and destroy."""

import gc
from functools import partial

import torch
from gpu_bench import Bench
from gpu_check import Check, Findings
from gpu_models import Shape, shape_decoder

CYCLED = Shape(
    name="cycled",
    target=None,
    raw={
        "model_type": "llama",
        "vocab_size": 32_000,
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 8,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    },
)
"""Large enough for a bound of one percent, and small enough that it sees a workspace of 32 MB left behind."""

PROMPT, DECODED = 60, 4


def memory_checks(bench: Bench) -> list[Check]:
    """None where there is no CUDA device to ask."""
    if bench.device.type != "cuda":
        return []
    run, name = partial(flat_memory, bench), "memory is flat over 5 cycles of build and destroy: cudagraph"
    return [Check(name=name, run=run, expected_s=8.0)]


def flat_memory(bench: Bench, findings: Findings) -> None:
    """The memory held after each of five cycles, as a share of what a cycle holds at most."""
    left = [_memory(bench)]
    peak = 0
    for _ in range(5):
        peak = max(peak, _cycle(bench))
        left.append(_memory(bench))
    for kind, name in enumerate(("allocated", "reserved")):
        amounts = [memory[kind] for memory in left]
        findings.note(
            f"{name} before and after each cycle, MB", [round(amount / 1e6, 1) for amount in amounts]
        )
        findings.within(f"{name}: growth over cycles 2 to 5", (amounts[-1] - amounts[1]) / peak, 0.01)
        findings.within(f"{name}: kept after all", (amounts[-1] - amounts[0]) / peak, 0.10)
    findings.note("peak of a cycle, MB", round(peak / 1e6))


def _cycle(bench: Bench) -> int:
    """Build a model and a session, decode, serve a foreign cache; return what was allocated at most."""
    torch.cuda.reset_peak_memory_stats(bench.device)
    decoder = shape_decoder(CYCLED, bench.device, torch.bfloat16)
    session = bench.session(decoder, "cudagraph", rows=2, strict=False)
    foreign = bench.session(decoder, "eager").caches
    session.plan_ahead((1, 2))
    for cache in (session.caches[0], foreign[0]):
        session.prefill([1] * PROMPT, cache)
        for token in range(DECODED):
            session.step([[token]], (cache,))
    return torch.cuda.max_memory_allocated(bench.device)


def _memory(bench: Bench) -> tuple[int, int]:
    gc.collect()
    bench.synchronise()
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated(bench.device), torch.cuda.memory_reserved(bench.device)
