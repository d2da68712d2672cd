"""LongRoPE: short factors up to the trained length, long ones beyond, per row, the keys redone once."""

import pytest
import torch

from fuel_core.cache import Cache
from fuel_core.family import Family
from fuel_core.testing import Case
from fuel_core.testing.checks import EXACT, assert_close, gap

ORIGINAL = 16
TOKENS = [int(t) for t in torch.randint(0, 96, (40,), generator=torch.Generator().manual_seed(1))]


@pytest.fixture
def case(qwen2: Family) -> Case:
    raw = {
        **qwen2.tiny["dense"],
        "max_position_embeddings": 64,
        "rope_scaling": {
            "rope_type": "longrope",
            "short_factor": [1.0, 1.1, 1.2, 1.3],
            "long_factor": [1.5, 3.0, 6.0, 12.0],
            "original_max_position_embeddings": ORIGINAL,
        },
    }
    return Case.build(qwen2, "dense", raw=raw)


@pytest.mark.parametrize("capacity", [40, 64])
def test_every_step_equals_a_fresh_pass(case: Case, capacity: int) -> None:
    """Engines kept keys rotated by the short factors beside queries rotated by the long ones, and the
    text turned to garbage at the trained length; others chose once, by the allocated capacity."""
    session = case.session(capacity=capacity)
    session.prefill(TOKENS[:12])
    for position in range(12, 22):
        logits = session.step([[TOKENS[position]]])[0]
        wanted = case.one_shot(TOKENS[: position + 1])[-1]
        assert_close(logits, wanted, EXACT, f"token {position}")
    assert session.counters.reprefills == 1
    assert session.counters.plans == 1


def test_the_switch_matters(case: Case) -> None:
    """Non-vacuity: at the crossing the two tables give other logits."""
    below, above = case.one_shot(TOKENS[:ORIGINAL]), case.one_shot(TOKENS[: ORIGINAL + 1])
    assert gap(below[-1], above[ORIGINAL - 1]) > 1e-3


def test_a_prompt_beyond_the_crossing_needs_no_second_pass(case: Case) -> None:
    session = case.session()
    logits = session.prefill(TOKENS[:30], chunk_tokens=7)
    assert_close(logits, case.one_shot(TOKENS[:30])[-1], EXACT, "a long prompt")
    assert session.counters.reprefills == 0


def test_rows_of_a_batch_switch_by_themselves(case: Case) -> None:
    """transformers lets the longest row of a batch choose for all; here a row never sees the others."""
    session = case.session(rows=2)
    session.prefill(TOKENS[:14], session.caches[0])
    session.prefill(TOKENS[:3], session.caches[1])
    for offset in range(5):
        logits = session.step([[TOKENS[14 + offset]], [TOKENS[3 + offset]]])
        for row, held in enumerate((15 + offset, 4 + offset)):
            assert_close(logits[row], case.one_shot(TOKENS[:held])[-1], EXACT, f"row {row}, {held} tokens")
    assert session.counters.reprefills == 1
    assert [cache.regime for cache in session.caches] == [1, 0]


def test_truncating_below_the_crossing_switches_back(case: Case) -> None:
    session = case.session()
    session.prefill(TOKENS[:20])
    session.caches[0].truncate(10)
    logits = session.step([[TOKENS[10]]])[0]
    assert_close(logits, case.one_shot(TOKENS[:11])[-1], EXACT, "back below")


def test_an_interrupted_switch_is_done_again(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C between two chunks leaves keys of both tables; they must not be taken for either."""
    session = case.session()
    session.prefill(TOKENS[:ORIGINAL])

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(case.decoder), "step", interrupt)
        with pytest.raises(KeyboardInterrupt):
            session.step([[TOKENS[ORIGINAL]]])
    assert session.caches[0].regime == Cache.UNSETTLED
    logits = session.step([[TOKENS[ORIGINAL]]])[0]
    assert_close(logits, case.one_shot(TOKENS[: ORIGINAL + 1])[-1], EXACT, "after the interruption")
