"""Phi-3's two tables against transformers on both sides of the trained length, one sequence at a time.

The kit holds every step around the crossing against fresh passes; this holds those passes against another
library, which recomputes all of a sequence when it is asked for one.
"""

from pathlib import Path

import pytest
import torch

from fuel_core.registry import Registry
from fuel_core.testing import Case
from fuel_core.testing.checks import ORACLE_ABSOLUTE, assert_close
from fuel_core.testing.oracle import TransformersOracle

ORIGINAL = 16


@pytest.fixture
def phi3() -> Case:
    return Case.build(Registry.discover().family("phi3"), "longrope", dtype=torch.float32)


def test_transformers_on_both_sides_of_the_trained_length(phi3: Case, tmp_path: Path) -> None:
    assert phi3.plan.switch_length == ORIGINAL
    phi3.save(tmp_path)
    oracle = TransformersOracle(tmp_path)
    tokens = phi3.token_ids(seed=42, count=ORIGINAL + 1)
    for length in (ORIGINAL, ORIGINAL + 1):
        wanted = oracle.logits(tokens[:length])
        assert_close(phi3.one_shot(tokens[:length]), wanted, ORACLE_ABSOLUTE, f"{length} tokens")


def test_greedy_text_across_the_trained_length(phi3: Case, tmp_path: Path) -> None:
    """transformers' own generation drops its cache at the crossing; the text is the same."""
    phi3.save(tmp_path)
    prompt = phi3.token_ids(seed=43, count=ORIGINAL - 4)
    session = phi3.session()
    logits = session.prefill(prompt)
    chosen = []
    for _ in range(10):
        best = logits.topk(2).values
        assert float(best[0] - best[1]) > 1e-3, "a near tie: choose another seed"
        chosen.append(int(logits.argmax()))
        logits = session.step([[chosen[-1]]])[0]
    assert TransformersOracle(tmp_path).greedy(prompt, len(chosen)) == chosen
    assert session.counters.reprefills == 1


def test_a_larger_cache_changes_nothing_below_the_crossing(phi3: Case) -> None:
    """Engines that choose by the size of the cache serve short chats with the long factors."""
    tokens = phi3.token_ids(seed=44, count=ORIGINAL)
    small, large = (phi3.session(capacity=capacity) for capacity in (ORIGINAL, 256))
    for session in (small, large):
        session.prefill(tokens[:-1])
    assert torch.equal(small.step([tokens[-1:]]), large.step([tokens[-1:]]))
    assert (small.counters.reprefills, large.counters.reprefills) == (0, 0)
