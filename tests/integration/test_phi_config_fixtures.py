"""Published config.json values of the Phi families: the plan that each must give.

The values stand in ``tests/fixtures/configs``, as ``test_config_fixtures`` says. Phi-3.5-MoE itself is there
as the shrunken checkpoint that other libraries test with: the same keys, smaller sizes.
"""

from pathlib import Path
from typing import Any

import pytest

from fuel_core.config import read_json_object
from fuel_core.plans import GatedMLPPlan, LongRopeScaling, MLPPlan, MoEPlan, NormPlan
from fuel_core.testing import PublishedModel
from fuel_phi.sparse_mixer import SparseMixerPlan

FOLDER = Path(__file__).parents[1] / "fixtures" / "configs"


def fixture(name: str) -> dict[str, Any]:
    return read_json_object(FOLDER / f"{name}.json")


def gelu(width: int) -> MLPPlan:
    return MLPPlan(width=width, activation="gelu_new", bias=True)


def silu(width: int) -> GatedMLPPlan:
    return GatedMLPPlan(width=width, activation="silu")


def experts(width: int) -> MoEPlan:
    return MoEPlan(
        router=SparseMixerPlan(experts=16, eps=0.01),
        expert_width=width,
        activation="silu",
        shared=None,
        shared_gate=False,
    )


def longrope(name: str, **mscales: float) -> LongRopeScaling:
    """Phi-3's magnitude is the root of 1 + ln(32) / ln(4096), for a context 32 times the trained one."""
    recipe = fixture(name)["rope_scaling"]
    return LongRopeScaling(
        short_factor=tuple(map(float, recipe["short_factor"])),
        long_factor=tuple(map(float, recipe["long_factor"])),
        original_length=4096,
        magnitude=(1 + 5 / 12) ** 0.5,
        **mscales,
    )


PHI_2: dict[str, Any] = {
    "family": "phi",
    "vocab_size": 51_200,
    "query_heads": 32,
    "kv_heads": 32,
    "rotary_width": 32,
    "norm": NormPlan("layer", 1e-5),
    "parallel": True,
    "qkv_bias": True,
    "out_bias": True,
    "head_bias": True,
    "context": 2048,
    "base": 1e4,
    "stored_dtype": "float16",
}
PHI_3: dict[str, Any] = {
    "family": "phi3",
    "hidden_size": 3072,
    "layers": 32,
    "feed_forward": silu(8192),
    "norm": NormPlan("rms", 1e-5),
    "base": 1e4,
    "stored_dtype": "bfloat16",
}
PHI_3_MINI: dict[str, Any] = {
    **PHI_3,
    "vocab_size": 32_064,
    "query_heads": 32,
    "kv_heads": 32,
    "head_dim": 96,
    "cache_bytes": 393_216,
}
PHI_MOE: dict[str, Any] = {
    "family": "phimoe",
    "vocab_size": 32_064,
    "kv_heads": 4,
    "norm": NormPlan("layer", 1e-5),
    "qkv_bias": True,
    "out_bias": True,
    "head_bias": True,
    "base": 1e4,
    "stored_dtype": "bfloat16",
}

PHI = {
    "phi-1_5": PublishedModel(
        **PHI_2,
        hidden_size=2048,
        layers=24,
        head_dim=64,
        feed_forward=gelu(8192),
        cache_bytes=196_608,
    ),
    "phi-2": PublishedModel(
        **PHI_2,
        hidden_size=2560,
        layers=32,
        head_dim=80,
        feed_forward=gelu(10_240),
        cache_bytes=327_680,
    ),
    "phi-3-mini-4k-instruct": PublishedModel(**PHI_3_MINI, context=4096, window=2047),
    "phi-3.5-mini-instruct": PublishedModel(
        **PHI_3_MINI,
        context=131_072,
        window=262_144,
        scaling=longrope("phi-3.5-mini-instruct"),
        switch_length=4096,
    ),
    "phi-4": PublishedModel(
        family="phi3",
        vocab_size=100_352,
        hidden_size=5120,
        layers=40,
        query_heads=40,
        kv_heads=10,
        head_dim=128,
        feed_forward=silu(17_920),
        norm=NormPlan("rms", 1e-5),
        context=16_384,
        base=2.5e5,
        stored_dtype="bfloat16",
        cache_bytes=204_800,
    ),
    "phi-4-mini-instruct": PublishedModel(
        **PHI_3,
        vocab_size=200_064,
        query_heads=24,
        kv_heads=8,
        head_dim=128,
        rotary_width=96,
        context=131_072,
        window=262_144,
        scaling=longrope("phi-4-mini-instruct"),
        switch_length=4096,
        tied=True,
        cache_bytes=131_072,
    ),
    "phi-tiny-moe-instruct": PublishedModel(
        **PHI_MOE,
        hidden_size=4096,
        layers=32,
        query_heads=16,
        head_dim=128,
        feed_forward=experts(448),
        context=4096,
        window=2047,
        cache_bytes=65_536,
    ),
    "phi-3.5-moe-tiny-random": PublishedModel(
        **PHI_MOE,
        hidden_size=16,
        layers=2,
        query_heads=4,
        head_dim=4,
        feed_forward=experts(32),
        context=131_072,
        window=131_072,
        scaling=longrope(
            "phi-3.5-moe-tiny-random", short_mscale=1.243163121016122, long_mscale=1.243163121016122
        ),
        switch_length=4096,
        cache_bytes=128,
    ),
}


@pytest.mark.parametrize("name", PHI)
def test_each_phi_gives_its_plan(name: str) -> None:
    PHI[name].require(fixture(name))


def test_the_phi_fixtures_differ() -> None:
    """Non-vacuity: a reader that returned one preset would pass a test of one file."""
    assert len({wanted.plan for wanted in PHI.values()}) == len(PHI)
