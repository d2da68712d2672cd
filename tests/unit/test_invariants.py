"""Each check of the conformance kit can fail: for every promise a fault that its check must see.

The faults of a forward pass itself are ``CORE_MUTATIONS``, which the kit applies to every family.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from inspect import getmembers, isfunction, signature
from typing import Any

import pytest
from torch import Tensor

import fuel_core.decode.driver
import fuel_core.ops.cached
import fuel_core.ops.held
import fuel_core.ops.latent
from fuel_core.blocks import Decoder
from fuel_core.cache import Cache, CachePool
from fuel_core.decode import DecodeSession
from fuel_core.decode.backends.eager import EagerStep
from fuel_core.decode.buffers import prefill_inputs
from fuel_core.errors import FuelError, TopologyChanged
from fuel_core.registry import Registry
from fuel_core.rotary import RopeTable
from fuel_core.step import Step
from fuel_core.testing import Case, Conformance, checks
from fuel_core.testing.mutations import Patch

RED = (AssertionError, FuelError, RuntimeError, pytest.fail.Exception)
"""How a check ends when its invariant is broken."""


def replays(change: Callable[[EagerStep, Tensor], Tensor]) -> Patch:
    """A replay whose logits pass through ``change``."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        right = EagerStep.replay
        monkeypatch.setattr(EagerStep, "replay", lambda self, *args: change(self, right(self, *args)))

    return patch


def replaces(owner: Any, name: str, value: object) -> Patch:
    return lambda monkeypatch: monkeypatch.setattr(owner, name, value)


def works_more_at_even_positions(step: EagerStep, logits: Tensor) -> Tensor:
    return logits + 0 if step.inputs.positions_BT.numpy().item() % 2 else logits


def reads_on_the_host(step: EagerStep, logits: Tensor) -> Tensor:
    return logits if logits.sum().item() else -logits


def keeps_every_logit(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Tensor] = []
    replays(lambda step, logits: kept.append(logits) or logits)(monkeypatch)  # type: ignore[func-returns-value]


def forget_plans(session: DecodeSession) -> None:
    """Without a trace that a strict session would object to."""
    session._plans.clear()
    session._planned_sizes.clear()


def plans_every_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DecodeSession, "held_plan", lambda self, caches: forget_plans(self))


def drops_the_plan_at_a_prefill(monkeypatch: pytest.MonkeyPatch) -> None:
    right = fuel_core.decode.driver.drive

    def drive(session: DecodeSession, token_ids: Sequence[Sequence[int]], caches: Sequence[Cache]) -> Tensor:
        if len(token_ids[0]) != 1:
            forget_plans(session)
        return right(session, token_ids, caches)

    monkeypatch.setattr("fuel_core.decode.session.drive", drive)


def replans_for_a_foreign_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    def bind(self: EagerStep, *args: Any) -> int:
        raise TopologyChanged("another pool")

    monkeypatch.setattr(EagerStep, "bind", bind)


def pays_for_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Step.cached

    def cached(plan: Any, tables: Any, inputs: Any, *rest: Any) -> Step:
        for window in plan.mask.windows:
            _ = window and inputs.positions_BT - window
        return right(plan, tables, inputs, *rest)

    monkeypatch.setattr(Step, "cached", cached)


def starts_every_chunk_at_zero(cache: Any, token_ids: Any, start: int) -> Any:
    return prefill_inputs(cache, token_ids, 0)


def counts_a_call_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Cache.advance

    def advance(self: Cache, ids: Sequence[int]) -> None:
        right(self, ids)
        self.version += 1

    monkeypatch.setattr(Cache, "advance", advance)


def takes_positions_from_the_first_row(monkeypatch: pytest.MonkeyPatch) -> None:
    right = RopeTable.rows
    monkeypatch.setattr(RopeTable, "rows", lambda self, positions, r: right(self, positions[:1], r[:1]))


def mixes_a_trace_of_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    right = fuel_core.ops.cached.attend
    trace = 1e-14  # below the bound of every equivalence
    monkeypatch.setattr("fuel_core.step.attend", lambda *args: (out := right(*args)) + trace * out.mean(0))


def advances_before_it_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    right = fuel_core.decode.session.check_request

    def check(decoder: Any, rows: Any, caches: Sequence[Cache]) -> None:
        try:
            right(decoder, rows, caches)
        except FuelError:
            caches[0].advance([0])
            raise

    monkeypatch.setattr(fuel_core.decode.session, "check_request", check)


@dataclass(frozen=True)
class Fault:
    """A broken promise and the check that must see it."""

    check: Callable[[Case], None]
    patch: Patch
    family: str = "qwen2"
    tiny: str = "mixed-window"


def detached(decoder: Decoder, hidden: Tensor) -> Tensor:
    return hidden.detach() @ decoder.embed.weight.T


FAULTS = {
    "decode ignores windows": Fault(
        checks.cached_equals_one_shot,
        replaces(fuel_core.ops.held, "first_visible", lambda query, window: 0),
    ),
    "a replay differs in the last bit": Fault(
        checks.held_step_equals_eager_step, replays(lambda step, logits: logits * (1 + 2**-52))
    ),
    "every token plans": Fault(checks.plans_once, plans_every_token),
    "a token takes one operation more": Fault(checks.plans_once, replays(works_more_at_even_positions)),
    "a replay reads a device value": Fault(checks.plans_once, replays(reads_on_the_host)),
    "every token leaves a tensor": Fault(checks.plans_once, keeps_every_logit),
    "a window costs an operation": Fault(checks.masks_add_no_operation, pays_for_windows),
    "a foreign pool costs a plan": Fault(checks.swapped_cache_rebinds, replans_for_a_foreign_pool),
    "a prefill drops the plan": Fault(checks.prefill_keeps_the_plan, drops_the_plan_at_a_prefill),
    "every chunk starts at position 0": Fault(
        checks.any_chunk_size_prefills_alike,
        replaces(fuel_core.decode.session, "prefill_inputs", starts_every_chunk_at_zero),
    ),
    "a call counts twice": Fault(checks.any_chunk_size_prefills_alike, counts_a_call_twice),
    "no layer heeds its window": Fault(
        checks.windows_matter, replaces(fuel_core.step, "visible", lambda query, key, window: key <= query)
    ),
    "a query does not see itself": Fault(
        checks.windows_matter, replaces(fuel_core.step, "visible", lambda query, key, window: key < query)
    ),
    "the spare row is not counted": Fault(
        checks.cache_bytes_are_exact,
        replaces(CachePool, "bytes", property(lambda pool: pool.bytes_per_token * pool.capacity * pool.rows)),
    ),
    "all rows stand where the first one does": Fault(
        checks.rows_are_independent, takes_positions_from_the_first_row
    ),
    "a row takes a trace of its neighbours": Fault(checks.rows_are_independent, mixes_a_trace_of_all_rows),
    "a full cache is not refused": Fault(
        checks.bad_requests_change_nothing, replaces(Cache, "remaining", property(lambda cache: 1_000))
    ),
    "an error does not say whose it is": Fault(
        checks.bad_requests_change_nothing,
        replaces(DecodeSession, "_naming", lambda session, entry: nullcontext()),
    ),
    "a refused call counts": Fault(checks.bad_requests_change_nothing, advances_before_it_refuses),
    "W_UK read as W_UV": Fault(
        checks.latent_forms_agree,
        replaces(fuel_core.ops.latent, "split_heads", lambda w_kv, nope: (w_kv[:, nope:], w_kv[:, nope:])),
        family="deepseek_v2",
        tiny="plain-q",
    ),
    "the head passes no gradient": Fault(checks.gradients_flow, replaces(Decoder, "logits", detached)),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_check_sees_its_fault(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = FAULTS[name]
    case = Case.build(Registry.discover().family(fault.family), fault.tiny)
    fault.check(case)
    fault.patch(monkeypatch)
    with pytest.raises(RED):
        fault.check(case)


def test_every_check_is_run_and_has_a_fault() -> None:
    """A check that nothing runs, or that was never red, proves nothing."""
    all_checks = {
        check
        for _, check in getmembers(checks, isfunction)
        if check.__module__ == checks.__name__
        and list(signature(check).parameters) == ["case"]
        and signature(check).return_annotation is None
    }
    (invariants,) = (mark for mark in Conformance.test_invariant.pytestmark if mark.name == "parametrize")
    run_elsewhere = {checks.cached_equals_one_shot, checks.latent_forms_agree, checks.windows_matter}
    under_mutations = {checks.rebinding_alone_is_wrong}
    assert {fault.check for fault in FAULTS.values()} | under_mutations == all_checks
    assert {*invariants.args[1], *run_elsewhere, *under_mutations} == all_checks
