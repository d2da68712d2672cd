"""What must hold where a sequence outgrows the first of two RoPE tables."""

from fuel_core.decode import DecodeSession
from fuel_core.testing.case import Case
from fuel_core.testing.checks import EXACT, assert_close

AROUND = 4
"""Tokens that are decoded on each side of the crossing."""


def crossing_equals_fresh_passes(case: Case) -> None:
    """At every step around the crossing a row's logits are those of a fresh one-shot pass over its tokens,
    whatever the capacity and however long its neighbour is; its keys are redone once, the plan stays."""
    original = case.plan.switch_length
    assert original is not None, "vacuous: one table serves every length"
    tokens = case.token_ids(seed=11, count=original + AROUND)
    fresh = {held: case.one_shot(tokens[:held]) for held in range(1, len(tokens) + 1)}
    for capacity in (len(tokens), case.plan.position_limit):
        session = case.session(rows=2, capacity=capacity)
        long, short = original - AROUND, 3
        for cache, held in zip(session.caches, (long, short), strict=True):
            session.prefill(tokens[:held], cache)
        for offset in range(2 * AROUND):
            logits = session.step([[tokens[long + offset]], [tokens[short + offset]]])
            for row, held in enumerate((long + offset + 1, short + offset + 1)):
                wanted = fresh[held][-1]
                assert_close(logits[row], wanted, EXACT, f"capacity {capacity}, row {row}, {held} tokens")
        assert [cache.regime for cache in session.caches] == [1, 0]
        _require_once(session)


def _require_once(session: DecodeSession) -> None:
    counters = session.counters
    assert counters.reprefills == 1, f"the keys were redone {counters.reprefills} times"
    assert counters.plans == 1, f"the step was planned {counters.plans} times"
