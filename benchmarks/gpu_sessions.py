"""What a decode session must hold on a device, whatever its backend: the oracle is the eager step, D1."""

import random
import warnings
from collections.abc import Callable
from functools import partial
from unittest.mock import patch

import torch
from gpu_bench import Bench, EagerTwin
from gpu_check import Check, Findings, relative_gap
from gpu_models import TINY, tiny_decoder
from torch import Tensor, nn

from fuel_core.blocks import Decoder
from fuel_core.decode import DecodeSession
from fuel_core.decode.buckets import LEAST_TOKENS
from fuel_core.errors import FuelWarning
from fuel_core.generate.penalties import changes_logits, penalise
from fuel_core.generate.sampling import Sampler, Sampling
from fuel_core.ops import kernels
from fuel_core.step import LayerStep

PREFILLED, DECODED = 20, 40
"""Past the windows and the original contexts of the tiny models."""

COMPILED_BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
"""Of the largest logit: what ``CompiledBackend`` states, with its 1.4e-2 rounded up."""

CPU_BOUND = 2e-4
"""Of the largest logit, in float32: other kernels, which sum in another order."""

LONGEST_PROMPT = 120

SAMPLINGS = {
    "greedy": Sampling(),
    "top-k and top-p": Sampling(temperature=0.8, top_k=40, top_p=0.9, seed=7),
    "min-p": Sampling(temperature=1.3, min_p=0.02, seed=8),
    "penalties": Sampling(
        temperature=0.7, repetition_penalty=1.2, presence_penalty=0.3, logit_bias={5: 2.0}, seed=9
    ),
}


def session_checks(bench: Bench) -> list[Check]:
    """Every check of sessions, for the backends that there are."""
    checks = []
    for backend in bench.bitwise:
        for family, tiny in TINY:
            for dtype in bench.dtypes:
                name = f"held step is D1 bit for bit: {family}, {backend}, {_name(dtype)}"
                run = partial(held_is_eager, bench, backend, family, tiny, dtype)
                # the first backend compiles the kernels for all
                expected_s = 4.0 if backend == bench.bitwise[0] else 1.5
                checks.append(Check(name=name, run=run, expected_s=expected_s))
        for title, check in (
            ("a batch is D1 bit for bit, and idle rows change nothing", idle_rows),
            ("another cache, of the same pool and of a foreign one, is re-bound under strict", cache_swap),
            ("three requests of other lengths under strict: one plan, D1's tokens", three_requests),
            ("sampled tokens are D1's", sampled_tokens),
            ("without Triton a step is D1 bit for bit, from one bucket of capacity to the next", no_triton),
            ("replaced weights are planned anew, and answered from at once", replaced_weights),
        ):
            run = partial(check, bench, backend)
            checks.append(Check(name=f"{title}: {backend}", run=run, expected_s=3.0))
    for family, tiny in TINY:
        run = partial(same_as_cpu, bench, family, tiny)
        checks.append(Check(name=f"logits are the CPU's: {family}, float32", run=run, expected_s=2.0))
    if "cudagraph" in bench.backends:
        for title, check in (
            ("batch sizes planned ahead serve every number of rows", planned_ahead),
            ("tokens chosen behind the step, one step ahead of the host, are D1's", chosen_ahead),
            ("a layer that reads a value is warned of once and runs eagerly", reading_layer),
        ):
            run = partial(check, bench, "cudagraph")
            checks.append(Check(name=f"{title}: cudagraph", run=run, expected_s=3.0))
    if "compiled" in bench.backends:
        # every structure is compiled anew for a dtype: half precision on one family is enough
        for (family, tiny), dtype in (*((each, torch.float32) for each in TINY), (TINY[0], torch.bfloat16)):
            name = f"compiled step within its bound of D1: {family}, {_name(dtype)}"
            run = partial(compiled_is_near, bench, family, tiny, dtype)
            checks.append(Check(name=name, run=run, expected_s=8.0))
    return checks


def held_is_eager(
    bench: Bench, backend: str, family: str, tiny: str, dtype: torch.dtype, findings: Findings
) -> None:
    found, wanted, session = _decoded(bench, backend, family, tiny, dtype)
    differing = sum(not torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    findings.equal("steps that differ", differing, 0)
    findings.note("largest gap", relative_gap(torch.cat(found), torch.cat(wanted)))
    _require_live(findings, wanted)
    findings.equal("plans", session.counters.plans, 1)
    findings.equal("captures", session.counters.captures, bench.captures(backend))
    findings.equal("fallbacks", session.counters.fallbacks, 0)


def compiled_is_near(bench: Bench, family: str, tiny: str, dtype: torch.dtype, findings: Findings) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found, wanted, session = _decoded(bench, "compiled", family, tiny, dtype)
    findings.within("largest gap", relative_gap(torch.cat(found), torch.cat(wanted)), COMPILED_BOUNDS[dtype])
    _require_live(findings, wanted)
    findings.equal("plans", session.counters.plans, 1)
    findings.equal("captures", session.counters.captures, bench.captures("compiled"))
    fallbacks = [str(each.message) for each in caught if issubclass(each.category, FuelWarning)]
    findings.require(not fallbacks, f"it was not compiled: {fallbacks}")


def same_as_cpu(bench: Bench, family: str, tiny: str, findings: Findings) -> None:
    cpu = tiny_decoder(family, tiny, torch.device("cpu"), torch.float32)
    tokens = _tokens(1)
    with torch.no_grad():
        wanted = cpu(torch.tensor([tokens]))[0]
    session = bench.session(tiny_decoder(family, tiny, bench.device, torch.float32), "eager")
    logits = [session.prefill(tokens[:PREFILLED], chunk_tokens=7, all_positions=True)]
    logits += [session.step([[token]]).clone() for token in tokens[PREFILLED:]]
    findings.within("largest gap", relative_gap(torch.cat(logits), wanted), CPU_BOUND)


def idle_rows(bench: Bench, backend: str, findings: Findings) -> None:
    """Three rows of five: a captured batch of four has one that is unfilled, and then two that are idle."""
    decoder = _decoder(bench)
    session, twin = bench.session(decoder, backend, rows=5), EagerTwin(decoder, rows=5)
    for row in range(5):
        for prefill in (lambda ids, row: session.prefill(ids, session.caches[row]), twin.prefill):
            prefill(_tokens(row)[: 4 + 5 * row], row)
    size = session.backend.batch_size(3, bench.device)
    findings.note("batch size", size)
    for idle in ((), (1,)):
        places = [None if row in idle else row for row in range(3)]
        before = [tensor.clone() for layer in session.pool.layers for tensor in layer.tensors]
        lengths = [cache.length for cache in session.caches]
        tokens = [7, 11, 13]
        ours = [None if row is None else session.caches[row] for row in places]
        found = session.step([[token] for token in tokens], ours).clone()
        theirs = [None if row is None else twin.caches[row] for row in places]
        filled = size - 3
        wanted = twin.step([*tokens, *[0] * filled], [*theirs, *[None] * filled])
        active = [place for place, row in enumerate(places) if row is not None]
        what = f"with rows {active} active"
        findings.equal(f"{what}, differing", int((found[active] != wanted[active]).any(-1).sum()), 0)
        for place in active:
            lengths[place] += 1
        findings.require(
            [cache.length for cache in session.caches] == lengths, f"{what}: other caches advanced"
        )
        after = [tensor for layer in session.pool.layers for tensor in layer.tensors]
        for old, new in zip(before, after, strict=True):
            changed = (old != new).any(-1)  # [rows, G, C] or [rows, C]
            for row in active:
                changed[row].narrow(-1, lengths[row] - 1, 1).fill_(False)
            rows = changed[: session.pool.rows].flatten(1).any(-1)
            findings.require(not rows.any(), f"{what}: rows {rows.nonzero().flatten().tolist()} changed")
    findings.equal("plans", session.counters.plans, 1)


def cache_swap(bench: Bench, backend: str, findings: Findings) -> None:
    decoder, tokens = _decoder(bench), _tokens(1)
    session = bench.session(decoder, backend, rows=2)
    foreign = bench.session(decoder, "eager").caches[0]
    histories = {"first": _tokens(2)[:17], "second": _tokens(3)[:9], "foreign": _tokens(4)[:30]}
    caches = {"first": session.caches[0], "second": session.caches[1], "foreign": foreign}
    twins = {}
    for name, history in histories.items():
        session.prefill(history, caches[name])
        twins[name] = EagerTwin(decoder)
        twins[name].prefill(history)
    apart, copies = [], []
    for token in tokens[:6]:
        answers = {}
        for name, cache in caches.items():
            answers[name] = session.step([[token]], (cache,)).clone()
            wanted = twins[name].step([token])
            findings.require(
                torch.equal(answers[name], wanted),
                f"{name} cache, token {token}: off by {relative_gap(answers[name], wanted):.3g}",
            )
            copies.append(session.counters.copies)
        apart.append(relative_gap(answers["foreign"], answers["first"]))
    findings.note("histories apart by", min(apart))
    findings.require(min(apart) > 1e-3, "vacuous: the histories give the same logits")
    counters, captures = session.counters, bench.captures(backend)
    findings.equal("plans", counters.plans, 1)
    findings.equal("captures", counters.captures, 2 * captures)  # one more for rows of foreign pools
    findings.equal("copies before the foreign cache", copies[1], 0)
    buffers = sum(len(layer.tensors) for layer in session.pool.layers)
    findings.equal("copies", counters.copies, captures * buffers)  # in once: nobody else wrote it
    findings.equal("drops", counters.drops, 0)


def three_requests(bench: Bench, backend: str, findings: Findings) -> None:
    decoder = _decoder(bench)
    session, twin = bench.session(decoder, backend), EagerTwin(decoder)
    differing = 0
    for seed, prompt, count in zip((1, 2, 3), (5, 33, LONGEST_PROMPT), bench.request_tokens, strict=True):
        session.caches[0].reset()
        twin.caches[0].reset()
        ids = _tokens(seed, LONGEST_PROMPT)[:prompt]
        logits, expected = session.prefill(ids), twin.prefill(ids)
        for _ in range(count):
            token = int(logits.argmax())
            differing += token != int(expected.argmax())
            logits, expected = session.step([[token]])[0], twin.step([token])[0]
        differing += not torch.equal(logits, expected)
    counters = session.counters
    findings.equal("tokens that differ", differing, 0)
    findings.equal("replays", counters.replays, sum(bench.request_tokens))
    findings.equal("plans", counters.plans, 1)
    findings.equal("captures", counters.captures, bench.captures(backend))
    findings.equal("drops and fallbacks", counters.drops + counters.fallbacks, 0)


def sampled_tokens(bench: Bench, backend: str, findings: Findings) -> None:
    decoder = _decoder(bench)
    session = bench.session(decoder, backend)
    for name, sampling in SAMPLINGS.items():
        twin = EagerTwin(decoder)
        prompt = _tokens(5)[:PREFILLED]
        session.caches[0].reset()
        ours = _sampled(sampling, prompt, session.prefill, lambda ids: session.step([ids]))
        theirs = _sampled(sampling, prompt, twin.prefill, twin.step)
        differing = sum(a != b for a, b in zip(ours, theirs, strict=True))
        findings.equal(f"{name}: tokens that differ", differing, 0)
    findings.equal("plans", session.counters.plans, 1)


def chosen_ahead(bench: Bench, backend: str, findings: Findings) -> None:
    """The host sampler's tokens of each recipe that the device covers, and what a discarded step leaves."""
    decoder, session = _decoder(bench), None
    for name, sampling in SAMPLINGS.items():
        if changes_logits(sampling):
            continue
        session = session or bench.session(decoder, backend)
        twin, prompt = EagerTwin(decoder), _tokens(5)[:PREFILLED]
        theirs = _sampled(sampling, prompt, twin.prefill, twin.step)
        sampler = Sampler(sampling)
        session.caches[0].reset()
        ours = [sampler(session.prefill(prompt))]
        while len(ours) < DECODED:
            ((token, peak),) = session.step_chosen(
                [ours[-1:]], session.caches[:1], [sampler.choice()], [sampler.choice(1)]
            )
            ours.append(sampler.count(token, peak))
        differing = sum(a != b for a, b in zip(ours, theirs, strict=True))
        findings.equal(f"{name}: tokens that differ", differing, 0)
        # the step under way is not the one that is asked for now
        findings.require(torch.equal(session.step([[1]])[0], _after(decoder, prompt, ours[:-1])), name)
    assert session is not None, "no recipe is covered"
    findings.equal("plans", session.counters.plans, 1)
    findings.require(session.counters.discards > 0, "vacuous: nothing was launched ahead")


def _after(decoder: Decoder, prompt: list[int], tokens: list[int]) -> Tensor:
    twin = EagerTwin(decoder)
    twin.prefill(prompt)
    for token in tokens:
        twin.step([token])
    return twin.step([1])[0]


def _sampled(
    sampling: Sampling,
    prompt: list[int],
    prefill: Callable[[list[int]], Tensor],
    step: Callable[[list[int]], Tensor],
) -> list[int]:
    """The tokens that follow a prompt; ``step`` takes one and returns ``[1, V]``."""
    sampler, logits_V = Sampler(sampling), prefill(prompt)
    tokens: list[int] = []
    for _ in range(DECODED):
        tokens.append(sampler(penalise(logits_V, sampling, prompt, tokens)))
        logits_V = step(tokens[-1:])[0]
    return tokens


def replaced_weights(bench: Bench, backend: str, findings: Findings) -> None:
    decoder, tokens = _decoder(bench), _tokens(6)
    session, twin = bench.session(decoder, backend, strict=False), EagerTwin(decoder)
    session.prefill(tokens[:5])
    twin.prefill(tokens[:5])
    for position, token in enumerate(tokens[5:15]):
        if position == 4:
            other = tiny_decoder(*TINY[0], bench.device, torch.float32, seed=1)
            decoder.load_state_dict(other.state_dict(), assign=True)
        found, wanted = session.step([[token]]), twin.step([token])
        findings.require(torch.equal(found, wanted), f"step {position} is off")
    findings.equal("plans", session.counters.plans, 2)
    findings.equal("drops", session.counters.drops, 1)


def no_triton(bench: Bench, backend: str, findings: Findings) -> None:
    with patch.object(kernels, "triton_runs", lambda: False):
        decoder, tokens = _decoder(bench), _tokens(7, LEAST_TOKENS + 8)
        session, twin = bench.session(decoder, backend), EagerTwin(decoder)
        session.prefill(tokens[: LEAST_TOKENS - 8])
        twin.prefill(tokens[: LEAST_TOKENS - 8])
        for position, token in enumerate(tokens[LEAST_TOKENS - 8 :]):
            found, wanted = session.step([[token]]), twin.step([token])
            findings.require(torch.equal(found, wanted), f"step {position} is off")
    buckets = 2 if bench.device.type == "cuda" else 1  # elsewhere attention follows lengths
    findings.equal("captures", session.counters.captures, buckets * bench.captures(backend))


def planned_ahead(bench: Bench, backend: str, findings: Findings) -> None:
    decoder, sizes = _decoder(bench), (1, 2, 4, 8, 16, 32)
    session, twin = bench.session(decoder, backend, rows=32), EagerTwin(decoder, rows=32)
    session.plan_ahead(sizes)
    findings.equal("captures", session.counters.captures, len(sizes))
    for rows in (1, 3, 8, 21, 32):
        size = session.backend.batch_size(rows, bench.device)
        found = session.step([[row] for row in range(rows)], session.caches[:rows]).clone()
        idle = size - rows
        wanted = twin.step([*range(rows), *[0] * idle], [*twin.caches[:rows], *[None] * idle])
        findings.require(torch.equal(found, wanted[:rows]), f"{rows} rows, run as {size}, are off")
    findings.equal("plans", session.counters.plans, len(sizes))


class ReadingLayer(nn.Module):
    """A layer that reads a value of the device on the host, as no graph can."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x_BTM: Tensor, step: LayerStep) -> Tensor:
        assert x_BTM.abs().max().item() >= 0, "a magnitude is not negative"
        out: Tensor = self.inner(x_BTM, step)
        return out


def reading_layer(bench: Bench, backend: str, findings: Findings) -> None:
    broken, whole = _decoder(bench), _decoder(bench)
    broken.layers[1] = ReadingLayer(broken.layers[1])
    session, twin = bench.session(broken, backend, rows=2), EagerTwin(broken, rows=2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for token in (3, 4, 5):
            found, wanted = session.step([[token]], session.caches[:1]), twin.step([token], twin.caches[:1])
            findings.require(torch.equal(found, wanted), f"token {token} is off")
        found, wanted = session.step([[6], [7]]), twin.step([6, 7])
        findings.require(torch.equal(found, wanted), "two rows are off")
    texts = [str(each.message) for each in caught if issubclass(each.category, FuelWarning)]
    findings.equal("warnings", len(texts), 1)
    for part in ("layers.1", "ReadingLayer", ".item()"):
        findings.require(all(part in text for text in texts), f"{part} is not named: {texts}")
    findings.note("warning", texts[0] if texts else None)

    # the device goes on: what fits is captured after what did not
    after = DecodeSession(whole, bench.session(whole, "eager").caches, session.backend, strict=True)
    control = EagerTwin(whole)
    for token in (3, 4, 5):
        findings.require(
            torch.equal(after.step([[token]]), control.step([token])), f"afterwards token {token} is off"
        )
    findings.equal("captures afterwards", after.counters.captures, 1)


def _decoded(
    bench: Bench, backend: str, family: str, tiny: str, dtype: torch.dtype
) -> tuple[list[Tensor], list[Tensor], DecodeSession]:
    """A tiny model's logits of each decoded token by a backend and by D1, and the session."""
    decoder, tokens = tiny_decoder(family, tiny, bench.device, dtype), _tokens(1)
    session, twin = bench.session(decoder, backend), EagerTwin(decoder)
    session.prefill(tokens[:PREFILLED])
    twin.prefill(tokens[:PREFILLED])
    found = [session.step([[token]]).clone() for token in tokens[PREFILLED:]]
    return found, [twin.step([token]) for token in tokens[PREFILLED:]], session


def _require_live(findings: Findings, logits: list[Tensor]) -> None:
    stacked = torch.stack(logits)
    findings.require(bool(stacked.isfinite().all()), "logits are not finite")
    spread = (stacked[1:] - stacked[:-1]).abs().amax((1, 2)).min().item()
    findings.require(spread > 1e-2, f"vacuous: tokens follow with logits {spread:.3g} apart")


def _decoder(bench: Bench) -> Decoder:
    return tiny_decoder(*TINY[0], bench.device, torch.float32)


def _tokens(seed: int, count: int = PREFILLED + DECODED) -> list[int]:
    drawn = random.Random(seed)
    return [drawn.randrange(96) for _ in range(count)]  # every tiny vocabulary has 96 tokens


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
