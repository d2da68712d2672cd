"""How fast a planned step is: one pool and one plan a backend serve every context, sides interleaved.

Bytes are counted, not measured: the weights that a step reads once, and the live cache. Their rate is held
against device-to-device copies in the same rounds, bytes read and written.
"""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import torch
from gpu_bench import Bench, acquired
from gpu_models import Shape, shape_decoder, step_weight_bytes
from gpu_transformers import TransformersSide
from measure import interleaved, median_ratio

from fuel_core.blocks import Decoder
from fuel_core.cache import Cache
from fuel_core.decode import DecodeSession, RowChoice

CAPACITY = 32_768

CONTEXTS: Mapping[str, int] = {"128": 128, "4k": 4096, "32k": CAPACITY - 128}
"""Tokens that are held; the longest leaves room for what a run decodes."""

HOST_TARGET_US = 60.0
LONG_TARGET = 1.15
"""The longest context's step may take so many times what its bytes explain at the shortest one's rate."""


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much is measured; tests ask for less.

    Attributes:
        tokens: of one run of a side.
        rounds: interleaved runs of every side.
        probe_bytes, probe_copies: of a run of the copy probe; several, so that waiting once costs little.
        host_steps: steps whose host time is taken.
        capacity, contexts: of the one pool that serves all contexts, and the tokens held in each.
        compiled: whether transformers' model is.
    """

    tokens: int = 16
    rounds: int = 7
    probe_bytes: int = 1 << 30
    probe_copies: int = 8
    host_steps: int = 64
    compiled: bool = True
    capacity: int = CAPACITY
    contexts: Mapping[str, int] = field(default_factory=lambda: CONTEXTS)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One backend at one context.

    Attributes:
        greedy_s: raw seconds of each run of ``tokens`` tokens, chosen as generation does: behind the step
            on the device, one step ahead, where the backend runs ahead, else from the logits on the host.
        step_s: likewise of steps alone, one fixed token, synchronised at the end; not of eager.
        replay_s: likewise of bare replays of the held plan: the device's own time; not of eager.
        host_us: medians on an idle device, without waiting for it: a whole ``session.step``.
        rebind_us: of that, overwriting the step's inputs.
        copy_s: raw seconds of the copies in the same rounds.
        step_bytes: that a step must read, on the average of a run.
        fell_back: the warnings of a backend that runs eagerly instead.
        later_captures: graphs captured at this context beyond the first one's.
    """

    model: str
    context: str
    held: int
    backend: str
    tokens: int
    greedy_s: list[float]
    step_s: list[float]
    replay_s: list[float]
    copy_s: list[float]
    copy_bytes: int
    step_bytes: int
    host_us: float
    rebind_us: float
    fell_back: list[str]
    plans: int
    captures: int
    later_captures: int
    target: float | None

    @property
    def token_s(self) -> float:
        return median(self.greedy_s) / self.tokens

    @property
    def tokens_per_s(self) -> float:
        return 1 / self.token_s

    @property
    def gb_per_s(self) -> float:
        return self.step_bytes / self.token_s / 1e9

    @property
    def share(self) -> float:
        """Of copy bandwidth, by the median over rounds: both sides of a round saw the same machine."""
        return self._share(self.greedy_s)

    @property
    def replay_share(self) -> float | None:
        """The same of bare replays: what the kernels alone reach."""
        return self._share(self.replay_s) if self.replay_s else None

    def _share(self, seconds: list[float]) -> float:
        wanted = self.step_bytes * self.tokens / self.copy_bytes
        return median_ratio(self.copy_s, seconds) * wanted

    def record(self) -> dict[str, Any]:
        """All raw numbers, and what follows from them."""
        derived = ("tokens_per_s", "gb_per_s", "share", "replay_share")
        return {**asdict(self), **{name: getattr(self, name) for name in derived}}


class CopyProbe:
    """Copies a block to another one on the device, some times over."""

    def __init__(self, bench: Bench, effort: Effort) -> None:
        self._bench, self._copies = bench, effort.probe_copies
        # numbers that differ: constant data can move faster
        self._source = torch.arange(effort.probe_bytes // 8, device=bench.device)
        self._target = torch.empty_like(self._source)

    @property
    def bytes(self) -> int:
        """Read and written by a run."""
        return 2 * self._source.nbytes * self._copies

    def run(self) -> None:
        for _ in range(self._copies):
            self._target.copy_(self._source)
        self._bench.synchronise()


class ModelBench:
    """A model of a shape on a device, with a session a backend over one cache."""

    def __init__(self, bench: Bench, shape: Shape, effort: Effort) -> None:
        self.bench, self.shape, self.effort = bench, shape, effort
        self.decoder = shape_decoder(shape, bench.device, torch.bfloat16)
        self.cache = _filled_cache(self.decoder, effort.capacity)
        self._sessions: dict[str, DecodeSession] = {}
        self._warnings: dict[str, list[str]] = {}
        self._first_captures: dict[str, int] = {}

    def plan(self, backend: str) -> None:
        """Make a backend's session and plan its step."""
        session = DecodeSession(self.decoder, [self.cache], self.bench.backends[backend](), strict=True)
        self._hold(next(iter(self.effort.contexts.values())))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            session.step([[1]])
            self.bench.synchronise()
        captured = session.counters.captures == self.bench.captures(backend)
        self._warnings[backend] = [] if captured else [str(each.message) for each in caught]
        self._greedy(session, self.cache.length)  # the choice behind the step is captured too
        self._sessions[backend] = session
        self._first_captures[backend] = session.counters.captures

    def measure(self, context: str, probe: CopyProbe) -> list[Row]:
        """Every planned backend at one context."""
        held, effort = self.effort.contexts[context], self.effort
        self._hold(held)
        sides: dict[str, Callable[[], object]] = {"copy": probe.run}
        for name, session in self._sessions.items():
            sides[f"{name} greedy"] = partial(self._greedy, session, held)
            if name != "eager":  # which waits for its own host in every form
                sides[f"{name} step"] = partial(self._steps, session, held)
                sides[f"{name} replay"] = partial(self._replays, session)
        seconds = interleaved(sides, effort.rounds)
        live = (held + effort.tokens / 2) * self.cache.pool.bytes_per_token
        rows = []
        for name, session in self._sessions.items():
            host_us, rebind_us = self._host_us(session, held)
            rows.append(
                Row(
                    model=self.shape.name,
                    context=context,
                    held=held,
                    backend=name,
                    tokens=effort.tokens,
                    greedy_s=seconds[f"{name} greedy"],
                    step_s=seconds.get(f"{name} step", []),
                    replay_s=seconds.get(f"{name} replay", []),
                    copy_s=seconds["copy"],
                    copy_bytes=probe.bytes,
                    step_bytes=step_weight_bytes(self.decoder) + round(live),
                    host_us=host_us,
                    rebind_us=rebind_us,
                    fell_back=self._warnings[name],
                    plans=session.counters.plans,
                    captures=session.counters.captures,
                    later_captures=session.counters.captures - self._first_captures[name],
                    target=self.shape.target if context == next(iter(effort.contexts)) else None,
                )
            )
        return rows

    def against(self, side: TransformersSide, backends: list[str]) -> dict[str, list[float]]:
        """Seconds of each run at the shortest context: transformers' and these backends', interleaved."""
        held, effort = next(iter(self.effort.contexts.values())), self.effort
        self._hold(held)

        def theirs() -> None:
            side.run(effort.tokens)
            self.bench.synchronise()

        sides: dict[str, Callable[[], object]] = {"transformers": theirs}
        for name in backends:
            sides[name] = partial(self._greedy, self._sessions[name], held)
        theirs()  # compiles, and records its graphs at the second run
        theirs()
        return interleaved(sides, effort.rounds)

    def _hold(self, tokens: int) -> None:
        """Let the cache hold so many tokens: its pool is full of numbers, only their count is set."""
        self.cache.reset()
        self.cache.advance([1] * tokens)

    def _greedy(self, session: DecodeSession, held: int) -> None:
        token, greedy = 1, [RowChoice()]
        for left in reversed(range(self.effort.tokens)):
            if session.runs_ahead:
                ((token, _),) = session.step_chosen([[token]], [self.cache], greedy, greedy if left else None)
            else:
                token = int(session.step([[token]])[0].argmax())
        self.cache.truncate(held)

    def _steps(self, session: DecodeSession, held: int) -> None:
        for _ in range(self.effort.tokens):
            session.step([[1]])
        self.bench.synchronise()
        self.cache.truncate(held)

    @torch.no_grad()
    def _replays(self, session: DecodeSession) -> None:
        plan = session.held_plan([self.cache])
        assert plan is not None, "it was planned, and nothing has changed since"
        for _ in range(self.effort.tokens):
            plan.step.replay(self.cache.length + 1)
        self.bench.synchronise()

    def _host_us(self, session: DecodeSession, held: int) -> tuple[float, float]:
        """Medians of a step and of its rebind, each begun on an idle device and not waited for."""
        steps, rebinds = [], []
        for _ in range(self.effort.host_steps):
            self.bench.synchronise()
            before, start = session.phases.rebind, perf_counter()
            session.step([[1]])
            steps.append(perf_counter() - start)
            rebinds.append(session.phases.rebind - before)
        self.bench.synchronise()
        self.cache.truncate(held)
        return 1e6 * median(steps), 1e6 * median(rebinds)


def needed_bytes(shape_bytes: int, cache_bytes: int) -> int:
    """Memory to ask for before a model is built: an eighth more for activations, workspaces, splits."""
    return (shape_bytes + cache_bytes) * 9 // 8


def long_context(rows: list[Row]) -> list[dict[str, Any]]:
    """Of each model and backend: the longest context's step against what its bytes explain."""
    found = []
    for row in rows:
        near = next((r for r in rows if (r.model, r.backend) == (row.model, row.backend)), row)
        if row is near or row.backend == "eager" or row.held != max(r.held for r in rows):
            continue
        more_bytes = row.step_bytes / near.step_bytes
        found.append(
            {
                "model": row.model,
                "backend": row.backend,
                "context": row.context,
                "times_explained": row.token_s / (near.token_s * more_bytes),
                "times_explained_by_replays": median(row.replay_s) / (median(near.replay_s) * more_bytes),
                "target": LONG_TARGET,
            }
        )
    return found


def _filled_cache(decoder: Decoder, capacity: int) -> Cache:
    """A row whose whole capacity holds random numbers."""
    cache = acquired(decoder, 1, capacity)[0]
    draw = torch.Generator(decoder.device).manual_seed(1)
    for layer in cache.pool.layers:
        for tensor in layer.tensors:
            tensor.normal_(0, 1, generator=draw)
    return cache
