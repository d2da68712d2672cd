"""Phi-3.5-MoE beyond its trained length, where transformers is no oracle.

There transformers goes on with the short factors and takes the long ones' magnitude. Up to the trained
length it is right; beyond, the two recipes that it mixes are tested one by one.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from fuel_core.registry import Registry
from fuel_core.testing import Case
from fuel_core.testing.checks import EXACT, ORACLE_ABSOLUTE, assert_close, gap
from fuel_core.testing.crossing import crossing_equals_fresh_passes
from fuel_core.testing.oracle import TransformersOracle

ORIGINAL = 16
LONGROPE: dict[str, Any] = {
    "type": "longrope",
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [1.5, 3.0, 6.0, 12.0],
    "short_mscale": 1.2,
    "long_mscale": 1.6,
    "original_max_position_embeddings": ORIGINAL,
}


def case(recipe: dict[str, Any], dtype: torch.dtype = torch.float64) -> Case:
    family = Registry.discover().family("phimoe")
    raw = {**family.tiny["plain"], "rope_scaling": recipe}
    return Case.build(family, "plain", raw=raw, dtype=dtype)


@pytest.fixture
def mixed() -> Case:
    return case(LONGROPE)


def test_every_step_around_the_crossing(mixed: Case) -> None:
    crossing_equals_fresh_passes(mixed)


def test_transformers_up_to_the_trained_length(tmp_path: Path) -> None:
    single = case(LONGROPE, torch.float32)
    single.save(tmp_path)
    tokens = single.token_ids(seed=40, count=ORIGINAL)
    wanted = TransformersOracle(tmp_path).logits(tokens)
    assert_close(single.one_shot(tokens), wanted, ORACLE_ABSOLUTE, "at the trained length")


@pytest.mark.parametrize(("length", "table"), [(ORIGINAL, "short"), (ORIGINAL + 1, "long")])
def test_one_table_and_its_magnitude_serve_a_length(mixed: Case, length: int, table: str) -> None:
    """A model whose two tables are both this one, magnitude included, gives the same logits."""
    factors, mscale = LONGROPE[f"{table}_factor"], LONGROPE[f"{table}_mscale"]
    alone = case(
        {
            **LONGROPE,
            "short_factor": factors,
            "long_factor": factors,
            "short_mscale": mscale,
            "long_mscale": mscale,
        }
    )
    tokens = mixed.token_ids(seed=41, count=length)
    assert_close(mixed.one_shot(tokens), alone.one_shot(tokens), EXACT, f"{length} tokens")


def test_the_tables_differ(mixed: Case) -> None:
    """Non-vacuity: factors and magnitudes of the other table give other logits."""
    tokens = mixed.token_ids(seed=41, count=ORIGINAL + 1)
    right = mixed.one_shot(tokens)
    for key in ("factor", "mscale"):
        swapped = case({**LONGROPE, f"long_{key}": LONGROPE[f"short_{key}"]})
        assert gap(swapped.one_shot(tokens), right) > 1e-3, key
