"""A published config.json is held to its model card: each fact that differs is an AssertionError."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fuel_core.config import read_json_object
from fuel_core.plans import GatedMLPPlan, LinearScaling, NormPlan
from fuel_core.testing import PublishedModel

RAW = read_json_object(Path(__file__).parents[1] / "fixtures" / "configs" / "qwen2-0.5b.json")
QWEN2 = PublishedModel(
    family="qwen2",
    vocab_size=151_936,
    hidden_size=896,
    layers=24,
    query_heads=14,
    kv_heads=2,
    head_dim=64,
    feed_forward=GatedMLPPlan(width=4864, activation="silu"),
    norm=NormPlan("rms", 1e-6),
    context=131_072,
    base=1e6,
    stored_dtype="bfloat16",
    cache_bytes=12_288,
    tied=True,
    qkv_bias=True,
)

OTHER_FACTS: dict[str, Any] = {
    "family": "qwen3",
    "vocab_size": 151_937,
    "hidden_size": 897,
    "layers": 23,
    "query_heads": 16,
    "kv_heads": 1,
    "head_dim": 32,
    "feed_forward": GatedMLPPlan(width=4864, activation="gelu"),
    "norm": NormPlan("rms", 1e-5),
    "context": 131_071,
    "base": 1e4,
    "stored_dtype": "float16",
    "cache_bytes": 12_287,
    "tied": False,
    "qkv_bias": False,
    "out_bias": True,
    "qk_norm": NormPlan("rms", 1e-6),
    "parallel": True,
    "rotary_width": 32,
    "scaling": LinearScaling(factor=2.0),
    "without_rope": (3,),
    "window": 4096,
    "position_limit": 4096,
    "switch_length": 4096,
}


def test_the_facts_are_those_of_the_file() -> None:
    QWEN2.require(RAW)


@pytest.mark.parametrize("fact", OTHER_FACTS)
def test_a_fact_that_differs_is_seen(fact: str) -> None:
    with pytest.raises(AssertionError):
        replace(QWEN2, **{fact: OTHER_FACTS[fact]}).require(RAW)


def test_the_head_has_a_bias_or_none() -> None:
    untied = replace(QWEN2, tied=False)
    untied.require({**RAW, "tie_word_embeddings": False})
    with pytest.raises(AssertionError):
        replace(untied, head_bias=True).require({**RAW, "tie_word_embeddings": False})


def test_a_reading_that_a_user_should_know_of_is_no_silent_one() -> None:
    """Without ``layer_types`` the split at ``max_window_layers`` is read in two ways."""
    with pytest.raises(AssertionError, match="transformers would let none slide"):
        replace(QWEN2, window=4096).require({**RAW, "use_sliding_window": True, "sliding_window": 4096})
