"""A decode session: held plans, their static buffers, and what makes them valid.

Letters: B rows, T new tokens, V vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from threading import Lock
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from fuel_core.blocks.decoder import Decoder
from fuel_core.cache import Cache, CachePool
from fuel_core.decode.ahead import Ahead
from fuel_core.decode.backends import Backend
from fuel_core.decode.buckets import CapacityBuckets, attended_tokens
from fuel_core.decode.buffers import StaticInputs, append_inputs, pool_of, prefill_inputs, rebind
from fuel_core.decode.counters import Counters, PhaseTimes
from fuel_core.decode.driver import drive, drive_chosen
from fuel_core.decode.held_plan import HeldPlan
from fuel_core.decode.request import as_rows, check_request
from fuel_core.decode.token_choice import RowChoice, choose_now
from fuel_core.errors import (
    FuelError,
    ReplanError,
    RequestError,
    SessionBusy,
    TopologyChanged,
)

P = ParamSpec("P")
R = TypeVar("R")

PREFILL_CHUNK_TOKENS = 512
"""Tokens of one prefill step: large enough to be bound by arithmetic, small enough for its mask."""


def _outside_autograd(method: Callable[P, R]) -> Callable[P, R]:
    """Without gradients, and without inference mode: what that makes, nobody may write to afterwards."""

    @wraps(method)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with torch.inference_mode(False), torch.no_grad():
            return method(*args, **kwargs)

    return run


class DecodeSession:
    """Appends tokens to caches; plans the single-token step once and replays it.

    Attributes:
        decoder: the model; another one over the same weights keeps the held plans.
        caches: this session's own rows, in order; of one pool.
        counters, phases: what was done, and seconds by phase.
        strict: after a batch size was planned once, planning it again is an error.

    One call at a time: a second thread's is refused while the first one's runs. On CUDA all sessions of a
    device are to be called on one stream: their graphs share workspaces.

    Raises:
        RequestError: the backend cannot serve the model's device.
    """

    def __init__(
        self, decoder: Decoder, caches: Sequence[Cache], backend: Backend, *, strict: bool = False
    ) -> None:
        backend.batch_size(len(caches), decoder.device)  # refuses its device before anything runs
        self.decoder = decoder
        self.backend = backend
        self.strict = strict
        self.caches = tuple(caches)
        self.counters = Counters()
        self.phases = PhaseTimes()
        self._plans: dict[int, HeldPlan] = {}
        self._planned_sizes: set[int] = set()
        self._running = Lock()

    @property
    def pool(self) -> CachePool:
        """The pool of this session's own rows."""
        return self.caches[0].pool

    @_outside_autograd
    def step(
        self, token_ids: Tensor | Sequence[Sequence[int]], caches: Sequence[Cache | None] | None = None
    ) -> Tensor:
        """Append tokens to caches and return the logits of each row's last token.

        One token a row is served by the held plan; several are prefilled row by row, in chunks.

        Args:
            token_ids: ``[B, T]`` ids.
            caches: one a row, of one pool; by default this session's own. Rows of another pool of
                equal geometry re-bind the held plan. None is an idle row of a step of one token: it
                keeps the batch size, changes no cache, and its logits mean nothing.

        Returns:
            ``[B, V]``, at least float32. Valid until the next call of this session, which may overwrite
            it: clone what is to be kept.

        Raises:
            RequestError: no token, ragged rows, an id out of the vocabulary, rows of several pools.
            CapacityError: a row or the trained context cannot hold the tokens.
            GeometryError: the caches do not fit the model.
            ReplanError: a strict session would have to plan again.
            SessionBusy: another thread's call is running.

        Whatever is raised, no cache has advanced and the session goes on.
        """
        with self._naming("step"), self._alone():
            rows = as_rows(token_ids)
            caches = self.caches if caches is None else caches
            check_request(self.decoder, rows, caches)
            self._enter_regimes(rows, caches)
            idle = self._idle_rows(len(rows)) if len(rows[0]) == 1 else 0
            if not idle:
                return drive(self, rows, caches)
            return drive(self, [*rows, *[[0]] * idle], [*caches, *[None] * idle])[: len(rows)]

    @property
    def captured(self) -> bool:
        """Whether its steps are captured, so that a session in its place would begin by capturing."""
        return bool(self._plans) and all(plan.step.captures for plan in self._plans.values())

    @property
    def runs_ahead(self) -> bool:
        """Whether the backend makes :meth:`step_chosen` pay."""
        return self.backend.runs_ahead(self.decoder.device)

    @_outside_autograd
    def step_chosen(
        self,
        token_ids: Sequence[Sequence[int]],
        caches: Sequence[Cache | None],
        choices: Sequence[RowChoice],
        after: Sequence[RowChoice] | None = None,
    ) -> list[tuple[int, float]]:
        """As :meth:`step` for one token a row, and choose each row's next token on the device.

        Args:
            choices: how, one a row.
            after: how the tokens after these would be chosen, if the next call appends these to the same
                caches. The device starts with it before this call returns. A next call that asks for
                anything else is served as if it had not, and what was launched is a counted discard.

        Returns:
            Of each row its token and the largest logit; where that one is not finite no token could be
            chosen. Those of idle rows mean nothing.

        Raises: as :meth:`step`.
        """
        with self._naming("step_chosen"), self._alone():
            rows = as_rows(token_ids)
            check_request(self.decoder, rows, caches)
            wanted = [len(rows)] * (1 if after is None else 2)
            given = [len(each) for each in (choices, after) if each is not None]
            if len(rows[0]) != 1 or given != wanted:
                raise RequestError(f"one token and one choice a row of {len(rows)}; got {given} choices")
            self._enter_regimes(rows, caches)
            idle = self._idle_rows(len(rows))
            spare = [RowChoice()] * idle
            chosen_B2 = drive_chosen(
                self,
                [*rows, *[[0]] * idle],
                [*caches, *[None] * idle],
                [*choices, *spare],
                None if after is None else [*after, *spare],
            )
            return [(int(token), peak) for token, peak in chosen_B2[: len(rows)].tolist()]

    @_outside_autograd
    def prefill(
        self,
        token_ids: Tensor | Sequence[int],
        cache: Cache | None = None,
        *,
        chunk_tokens: int = PREFILL_CHUNK_TOKENS,
        all_positions: bool = False,
    ) -> Tensor:
        """Append a prompt to one cache without a plan, in chunks of ``chunk_tokens``.

        Returns:
            ``[V]``, the last token's logits, or with ``all_positions`` ``[T, V]``.

        Raises: as :meth:`step`.
        """
        with self._naming("prefill"), self._alone():
            if chunk_tokens < 1:
                raise RequestError(f"chunk_tokens is {chunk_tokens}; at least 1 is expected")
            cache = self.caches[0] if cache is None else cache
            rows = as_rows([token_ids])
            check_request(self.decoder, rows, (cache,))
            self._enter_regimes(rows, (cache,))
            logits = self._prefill(cache, rows[0], chunk_tokens, all_positions)
            self.advance(rows, (cache,))
            return logits

    @_outside_autograd
    def plan_ahead(self, batch_sizes: Sequence[int]) -> None:
        """Plan the steps of these batch sizes now, largest first: what one has captured in, the next uses.

        Raises:
            RequestError: a batch size below 1.
            ReplanError: as :meth:`step`.
            SessionBusy: another thread's call is running.
        """
        with self._naming("plan_ahead"), self._alone():
            if min(batch_sizes, default=1) < 1:
                raise RequestError(f"batch sizes {list(batch_sizes)}; at least 1 is expected")
            sizes = {size + self._idle_rows(size) for size in batch_sizes}
            for size in sorted(sizes, reverse=True):
                held = self._plans.get(size)
                if held is None or held.key != self._key(self.pool, size):
                    self._plan(self.pool, append_inputs([[0]] * size, [None] * size, self.pool), 1)

    # The rungs of the ladder, called by decode/driver.py.

    def run_once(self, token_ids: Sequence[Sequence[int]], caches: Sequence[Cache | None]) -> Tensor:
        """D1: the eager step, row by row unless every row has one token."""
        if len(token_ids[0]) > 1:
            rows = zip(token_ids, caches, strict=True)
            logits = torch.stack([self._prefill(cache, ids) for ids, cache in rows if cache is not None])
        else:
            self.counters.fallbacks += 1
            pool = pool_of(caches)
            buffers = CapacityBuckets(self.decoder.plan, pool).shown(attended_tokens(caches))
            hidden = self.decoder.step(append_inputs(token_ids, caches, pool), buffers)
            logits = self.decoder.logits(hidden[:, -1])
        self.advance(token_ids, caches)
        return logits

    def held_plan(self, caches: Sequence[Cache | None]) -> HeldPlan | None:
        """The plan that fits these caches, or None."""
        plan = self._plans.get(len(caches))
        key = self._key(pool_of(caches), len(caches))
        return plan if plan is not None and plan.key == key else None

    def make_plan(self, token_ids: Sequence[Sequence[int]], caches: Sequence[Cache | None]) -> HeldPlan:
        """Plan the step of this batch size; an older plan goes once the new one is there."""
        pool = pool_of(caches)
        return self._plan(pool, append_inputs(token_ids, caches, pool), attended_tokens(caches))

    def replay(
        self, plan: HeldPlan, token_ids: Sequence[Sequence[int]], caches: Sequence[Cache | None]
    ) -> Tensor:
        """D2: overwrite the step's inputs, bind what is new, replay."""
        plan.ahead.discard()
        with self.phases.measure("rebind"):
            self._bind(plan, caches)
            rebind(plan.inputs, token_ids, caches)
        with self.phases.measure("replay"), self.counters.counting_captures(plan.step):
            logits = plan.step.replay(attended_tokens(caches))
        self.counters.replays += 1
        return logits

    def replay_chosen(
        self,
        plan: HeldPlan,
        token_ids: Sequence[Sequence[int]],
        caches: Sequence[Cache | None],
        choices: Sequence[RowChoice],
        after: Sequence[RowChoice] | None,
    ) -> Tensor:
        """D2 with a choice of tokens behind it; with ``after`` the next such step is launched as well."""
        with self.phases.measure("rebind"):
            self._bind(plan, caches)
        if plan.step.staged:  # each token is copied back to where it belongs before the next step
            return choose_now(self.replay(plan, token_ids, caches), choices)
        return plan.ahead.run(self.decoder, token_ids, caches, choices, after)

    def drop(self, plan: HeldPlan) -> None:
        """Give up a plan and everything that it holds."""
        plan.ahead.discard()
        self._plans = {size: held for size, held in self._plans.items() if held is not plan}
        self.counters.drops += 1

    def advance(self, token_ids: Sequence[Sequence[int]], caches: Sequence[Cache | None]) -> None:
        """Count tokens that were written: once a call, after success."""
        for cache, ids in zip(caches, token_ids, strict=True):
            if cache is not None:
                cache.advance(ids)

    # What the rungs are made of.

    def _key(self, pool: CachePool, batch: int) -> tuple[object, ...]:
        return (self.decoder.plan.structure, self.decoder.weights, pool.geometry, batch)

    def _idle_rows(self, rows: int) -> int:
        """How many idle rows fill the batch size that the backend runs so many rows in."""
        return self.backend.batch_size(rows, self.decoder.device) - rows

    def _plan(self, pool: CachePool, inputs: StaticInputs, attended: int) -> HeldPlan:
        batch = inputs.rows_B.shape[0]
        if self.strict and batch in self._planned_sizes:
            raise ReplanError(
                f"a strict session planned batch size {batch} before and its plan no longer fits: the "
                "model's structure, its weights or the geometry of the caches has changed since"
            )
        with self.phases.measure("plan"):
            step = self.backend.plan(self.decoder, pool, inputs, attended)
        if batch in self._plans:
            self.drop(self._plans[batch])
        self.counters.plans += 1
        self.counters.captures += step.captures
        self._planned_sizes.add(batch)
        plan = HeldPlan(
            key=self._key(pool, batch),
            step=step,
            inputs=inputs,
            decoder=self.decoder,
            pool=pool,
            addresses=pool.addresses,
            epoch=self.decoder.weights.epoch,
            ahead=Ahead(step, inputs, self.counters, self.phases),
        )
        self._plans[batch] = plan
        return plan

    def _bind(self, plan: HeldPlan, caches: Sequence[Cache | None]) -> None:
        if plan.epoch != self.decoder.weights.epoch:
            raise TopologyChanged("the model's parameters were replaced after this step was planned")
        pool, step = pool_of(caches), plan.step
        same = plan.pool is pool and plan.decoder is self.decoder
        if same and plan.addresses != pool.addresses:
            raise TopologyChanged("the cache's buffers were replaced after this step was planned")
        if same and not step.staged:
            return
        with self.counters.counting_captures(step):
            self.counters.copies += step.bind(self.decoder, caches)
        self.counters.rebinds += not same
        plan.decoder, plan.pool, plan.addresses = self.decoder, pool, pool.addresses

    def _prefill(
        self,
        cache: Cache,
        token_ids: Sequence[int],
        chunk_tokens: int = PREFILL_CHUNK_TOKENS,
        all_positions: bool = False,
        start: int | None = None,
    ) -> Tensor:
        """Write tokens from position ``start`` (by default the cache's end) on; advances nothing."""
        first = cache.length if start is None else start
        logits = []
        with self.phases.measure("prefill"):
            for offset in range(0, len(token_ids), chunk_tokens):
                chunk = token_ids[offset : offset + chunk_tokens]
                stop = first + offset + len(chunk)
                inputs = prefill_inputs(cache, chunk, first + offset)
                hidden_TM = self.decoder.step(inputs, cache.pool.layers, attended=stop)[0]
                if all_positions:
                    logits.append(self.decoder.logits(hidden_TM))
            return torch.cat(logits) if all_positions else self.decoder.logits(hidden_TM[-1])

    def _enter_regimes(self, token_ids: Sequence[Sequence[int]], caches: Sequence[Cache | None]) -> None:
        """Let each row use the RoPE regime of its length after this call; keys that were rotated
        under another one are computed anew."""
        for cache, ids in zip(caches, token_ids, strict=True):
            if cache is None:
                continue
            regime = self.decoder.plan.rope.regime(cache.length + len(ids))
            if regime == cache.regime:
                continue
            cache.regime = regime
            if cache.length:
                self.counters.reprefills += 1
                try:
                    self._prefill(cache, cache.token_ids, start=0)
                except BaseException:
                    cache.regime = Cache.UNSETTLED  # some keys are of either: the next call does it again
                    raise

    @contextmanager
    def _naming(self, entry: str) -> Iterator[None]:
        """Let errors of this shared path say whose they are."""
        try:
            yield
        except FuelError as error:
            error.args = (f"{self.decoder.plan.family}: session.{entry}: {error}",)
            raise

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Refuse a call while another one runs: both would overwrite the same buffers."""
        if not self._running.acquire(blocking=False):
            raise SessionBusy("another call of this session is running; give each thread its own session")
        try:
            yield
        finally:
            self._running.release()
