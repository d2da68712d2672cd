"""Published config.json values of the Llama families: the plan that each must give.

The values stand in ``tests/fixtures/configs``, as ``test_config_fixtures`` says.
"""

from pathlib import Path
from typing import Any

import pytest

from fuel_core.config import read_json_object
from fuel_core.plans import GatedMLPPlan, Llama3Scaling, NormPlan, YarnScaling
from fuel_core.testing import PublishedModel

FOLDER = Path(__file__).parents[1] / "fixtures" / "configs"


def fixture(name: str) -> dict[str, Any]:
    return read_json_object(FOLDER / f"{name}.json")


def llama3(factor: float) -> Llama3Scaling:
    return Llama3Scaling(factor=factor, low_freq_factor=1.0, high_freq_factor=4.0, original_length=8192)


def silu(width: int) -> GatedMLPPlan:
    return GatedMLPPlan(width=width, activation="silu")


LLAMA_2: dict[str, Any] = {
    "family": "llama",
    "vocab_size": 32_000,
    "norm": NormPlan("rms", 1e-5),
    "base": 1e4,
}
LLAMA: dict[str, Any] = {
    "family": "llama",
    "norm": NormPlan("rms", 1e-5),
    "stored_dtype": "bfloat16",
}
MISTRAL: dict[str, Any] = {
    "family": "mistral",
    "norm": NormPlan("rms", 1e-5),
    "stored_dtype": "bfloat16",
    "query_heads": 32,
    "kv_heads": 8,
    "head_dim": 128,
    "feed_forward": silu(14_336),
}
MISTRAL_7B: dict[str, Any] = {
    **MISTRAL,
    "hidden_size": 4096,
    "layers": 32,
    "context": 32_768,
    "cache_bytes": 131_072,
}
SMOLLM3: dict[str, Any] = {
    "family": "smollm3",
    "vocab_size": 128_256,
    "hidden_size": 2048,
    "layers": 36,
    "query_heads": 16,
    "kv_heads": 4,
    "head_dim": 128,
    "feed_forward": silu(11_008),
    "norm": NormPlan("rms", 1e-6),
    "context": 65_536,
    "cache_bytes": 73_728,
    "stored_dtype": "bfloat16",
    "tied": True,
    "base": 5e6,
    "without_rope": (3, 7, 11, 15, 19, 23, 27, 31, 35),
}

PUBLISHED = {
    "llama-2-7b": PublishedModel(
        **LLAMA_2,
        hidden_size=4096,
        layers=32,
        query_heads=32,
        kv_heads=32,
        head_dim=128,
        feed_forward=silu(11_008),
        context=4096,
        cache_bytes=524_288,
        stored_dtype="float16",
    ),
    "llama-3.1-8b-instruct": PublishedModel(
        **LLAMA,
        vocab_size=128_256,
        hidden_size=4096,
        layers=32,
        query_heads=32,
        kv_heads=8,
        head_dim=128,
        feed_forward=silu(14_336),
        context=131_072,
        cache_bytes=131_072,
        base=5e5,
        scaling=llama3(8.0),
    ),
    "llama-3.2-1b-instruct": PublishedModel(
        **LLAMA,
        vocab_size=128_256,
        hidden_size=2048,
        layers=16,
        query_heads=32,
        kv_heads=8,
        head_dim=64,
        feed_forward=silu(8192),
        context=131_072,
        cache_bytes=32_768,
        base=5e5,
        scaling=llama3(32.0),
        tied=True,
    ),
    "tinyllama-1.1b-chat": PublishedModel(
        **LLAMA_2,
        hidden_size=2048,
        layers=22,
        query_heads=32,
        kv_heads=4,
        head_dim=64,
        feed_forward=silu(5632),
        context=2048,
        cache_bytes=22_528,
        stored_dtype="bfloat16",
    ),
    "smollm2-135m": PublishedModel(
        **LLAMA,
        vocab_size=49_152,
        hidden_size=576,
        layers=30,
        query_heads=9,
        kv_heads=3,
        head_dim=64,
        feed_forward=silu(1536),
        context=8192,
        cache_bytes=23_040,
        base=1e5,
        tied=True,
    ),
    "mistral-7b-v0.1": PublishedModel(**MISTRAL_7B, vocab_size=32_000, base=1e4, window=4096),
    "mistral-7b-v0.3": PublishedModel(**MISTRAL_7B, vocab_size=32_768, base=1e6),
    "mistral-nemo-base-2407": PublishedModel(
        **MISTRAL,
        vocab_size=131_072,
        hidden_size=5120,
        layers=40,
        context=128_000,
        cache_bytes=163_840,
        base=1e6,
    ),
    "smollm3-3b": PublishedModel(**SMOLLM3),
    "smollm3-3b-yarn": PublishedModel(
        **SMOLLM3, scaling=YarnScaling(factor=2.0, original_length=65_536), position_limit=131_072
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_each_gives_its_plan(name: str) -> None:
    PUBLISHED[name].require(fixture(name))


def test_they_differ() -> None:
    """Non-vacuity: a reader that returned one preset would pass a test of one file."""
    assert len({wanted.plan for wanted in PUBLISHED.values()}) == len(PUBLISHED)
