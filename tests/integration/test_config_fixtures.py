"""Published config.json values: the plan that each must give, or the package that each needs.

``tests/fixtures/configs`` holds the values of public checkpoints, as their model cards and the code
around them quote them, key for key. Those of Qwen2.5-7B and SmolLM3 with YaRN add the block that the model
card documents.
"""

from pathlib import Path
from typing import Any

import pytest

from fuel_core.config import AttentionKeys, RopeKeys, read_json_object
from fuel_core.errors import UnknownFamily
from fuel_core.plans import (
    GatedMLPPlan,
    Llama3Scaling,
    LongRopeScaling,
    MoEPlan,
    NormPlan,
    NoScaling,
    RopeVariant,
    RouterPlan,
    Scaling,
    YarnScaling,
)
from fuel_core.registry import Registry
from fuel_core.testing import PublishedModel

FOLDER = Path(__file__).parents[1] / "fixtures" / "configs"

PACKAGES = {
    "fuel-deepseek": ["deepseek-v2", "deepseek-v2-lite", "deepseek-v3"],
    "fuel-llama": [
        "llama-2-7b",
        "llama-3.1-8b-instruct",
        "llama-3.2-1b-instruct",
        "mistral-7b-v0.1",
        "mistral-7b-v0.3",
        "mistral-nemo-base-2407",
        "smollm2-135m",
        "smollm3-3b",
        "smollm3-3b-yarn",
        "tinyllama-1.1b-chat",
    ],
    "fuel-phi": [
        "phi-1_5",
        "phi-2",
        "phi-3-mini-4k-instruct",
        "phi-3.5-mini-instruct",
        "phi-3.5-moe-tiny-random",
        "phi-4",
        "phi-4-mini-instruct",
        "phi-tiny-moe-instruct",
    ],
    "fuel-qwen": [
        "qwen1.5-moe-a2.7b-chat",
        "qwen2-0.5b",
        "qwen2-57b-a14b",
        "qwen2-7b-instruct",
        "qwen2.5-0.5b-instruct",
        "qwen2.5-7b",
        "qwen2.5-7b-instruct",
        "qwen2.5-7b-instruct-yarn",
        "qwen3-0.6b",
        "qwen3-235b-a22b",
        "qwen3-30b-a3b",
        "qwen3-4b",
    ],
}


def fixture(name: str) -> dict[str, Any]:
    return read_json_object(FOLDER / f"{name}.json")


def test_every_fixture_is_listed_here() -> None:
    listed = sorted(name for names in PACKAGES.values() for name in names)
    assert listed == sorted(path.stem for path in FOLDER.glob("*.json"))


@pytest.mark.parametrize(
    ("package", "name"), [(package, name) for package, names in PACKAGES.items() for name in names]
)
def test_without_its_plugin_each_names_the_package(package: str, name: str) -> None:
    """Someone who downloads a model learns what to install, not that a model_type is unknown."""
    with pytest.raises(UnknownFamily) as caught:
        Registry(plugins=()).card_for_model_type(fixture(name)["model_type"])
    assert f"pip install {package}" in str(caught.value)


def silu(width: int) -> GatedMLPPlan:
    return GatedMLPPlan(width=width, activation="silu")


def qwen_experts(chosen: int, of: int, width: int, *, normalise: bool, shared: int = 0) -> MoEPlan:
    return MoEPlan(
        router=RouterPlan(experts=of, chosen=chosen, scoring="softmax", normalise=normalise),
        expert_width=width,
        activation="silu",
        shared=silu(shared) if shared else None,
        shared_gate=bool(shared),
    )


RMS = NormPlan("rms", 1e-6)
ALIKE: dict[str, Any] = {"norm": RMS, "base": 1e6, "stored_dtype": "bfloat16"}
QWEN2: dict[str, Any] = {**ALIKE, "family": "qwen2", "qkv_bias": True}
QWEN2_MOE: dict[str, Any] = {**ALIKE, "family": "qwen2_moe", "qkv_bias": True}
HALF_BILLION: dict[str, Any] = {
    **QWEN2,
    "vocab_size": 151_936,
    "hidden_size": 896,
    "layers": 24,
    "query_heads": 14,
    "kv_heads": 2,
    "head_dim": 64,
    "feed_forward": silu(4864),
    "tied": True,
    "cache_bytes": 12_288,
}
SEVEN_BILLION: dict[str, Any] = {
    **QWEN2,
    "vocab_size": 152_064,
    "hidden_size": 3584,
    "layers": 28,
    "query_heads": 28,
    "kv_heads": 4,
    "head_dim": 128,
    "feed_forward": silu(18_944),
    "tied": False,
    "cache_bytes": 57_344,
}

QWEN3: dict[str, Any] = {
    **ALIKE,
    "vocab_size": 151_936,
    "head_dim": 128,
    "qk_norm": RMS,
    "context": 40_960,
}

QWEN = {
    "qwen2-0.5b": PublishedModel(**HALF_BILLION, context=131_072),
    "qwen2-7b-instruct": PublishedModel(**SEVEN_BILLION, context=32_768),
    "qwen2.5-0.5b-instruct": PublishedModel(**HALF_BILLION, context=32_768),
    "qwen2.5-7b": PublishedModel(**SEVEN_BILLION, context=131_072),
    "qwen2.5-7b-instruct": PublishedModel(**SEVEN_BILLION, context=32_768),
    "qwen2.5-7b-instruct-yarn": PublishedModel(
        **SEVEN_BILLION,
        context=32_768,
        position_limit=131_072,
        scaling=YarnScaling(factor=4.0, original_length=32_768),
    ),
    "qwen3-0.6b": PublishedModel(
        **QWEN3,
        family="qwen3",
        hidden_size=1024,
        layers=28,
        query_heads=16,
        kv_heads=8,
        feed_forward=silu(3072),
        tied=True,
        cache_bytes=114_688,
    ),
    "qwen3-4b": PublishedModel(
        **QWEN3,
        family="qwen3",
        hidden_size=2560,
        layers=36,
        query_heads=32,
        kv_heads=8,
        feed_forward=silu(9728),
        tied=True,
        cache_bytes=147_456,
    ),
    "qwen1.5-moe-a2.7b-chat": PublishedModel(
        **QWEN2_MOE,
        vocab_size=151_936,
        hidden_size=2048,
        layers=24,
        query_heads=16,
        kv_heads=16,
        head_dim=128,
        feed_forward=qwen_experts(4, of=60, width=1408, normalise=False, shared=5632),
        context=32_768,
        tied=False,
        cache_bytes=196_608,
    ),
    "qwen2-57b-a14b": PublishedModel(
        **QWEN2_MOE,
        vocab_size=151_936,
        hidden_size=3584,
        layers=28,
        query_heads=28,
        kv_heads=4,
        head_dim=128,
        feed_forward=qwen_experts(8, of=64, width=2560, normalise=False, shared=20_480),
        context=131_072,
        tied=False,
        cache_bytes=57_344,
    ),
    "qwen3-30b-a3b": PublishedModel(
        **QWEN3,
        family="qwen3_moe",
        hidden_size=2048,
        layers=48,
        query_heads=32,
        kv_heads=4,
        feed_forward=qwen_experts(8, of=128, width=768, normalise=True),
        tied=False,
        cache_bytes=98_304,
    ),
    "qwen3-235b-a22b": PublishedModel(
        **QWEN3,
        family="qwen3_moe",
        hidden_size=4096,
        layers=94,
        query_heads=64,
        kv_heads=4,
        feed_forward=qwen_experts(8, of=128, width=1536, normalise=True),
        tied=False,
        cache_bytes=192_512,
    ),
}


@pytest.mark.parametrize("name", QWEN)
def test_each_qwen_gives_its_plan(name: str) -> None:
    QWEN[name].require(fixture(name))


def test_the_qwen2_fixtures_differ() -> None:
    """Non-vacuity: a reader that returned one preset would pass a test of one file."""
    plans = [wanted.plan for wanted in QWEN.values() if wanted.family == "qwen2"]
    assert len(set(plans)) == 5, "Qwen2-7B and Qwen2.5-7B instruct are one architecture"


@pytest.mark.parametrize(
    ("name", "kv_heads", "head_dim"),
    [
        ("llama-2-7b", 32, 128),
        ("llama-3.1-8b-instruct", 8, 128),
        ("llama-3.2-1b-instruct", 8, 64),
        ("mistral-nemo-base-2407", 8, 128),
        ("phi-2", 32, 80),
        ("phi-3.5-mini-instruct", 32, 96),
        ("qwen3-0.6b", 8, 128),
        ("qwen3-30b-a3b", 4, 128),
        ("smollm2-135m", 3, 64),
        ("tinyllama-1.1b-chat", 4, 64),
    ],
)
def test_heads_of_published_files(name: str, kv_heads: int, head_dim: int) -> None:
    """Mistral-Nemo and Qwen3 state a head_dim that is not the quotient; the others leave it out."""
    config, _ = AttentionKeys.read(fixture(name), source=name, allow_unknown_keys=True)
    assert (config.num_key_value_heads, config.head_dim) == (kv_heads, head_dim)


def deepseek(mscale: float) -> YarnScaling:
    return YarnScaling(factor=40.0, original_length=4096, mscale=mscale, mscale_all_dim=mscale)


def llama3(factor: float) -> Llama3Scaling:
    return Llama3Scaling(factor=factor, low_freq_factor=1.0, high_freq_factor=4.0, original_length=8192)


@pytest.mark.parametrize(
    ("name", "width", "base", "scaling"),
    [
        ("llama-2-7b", 128, 1e4, NoScaling()),
        ("llama-3.1-8b-instruct", 128, 5e5, llama3(8.0)),
        ("llama-3.2-1b-instruct", 64, 5e5, llama3(32.0)),
        ("mistral-7b-v0.3", 128, 1e6, NoScaling()),
        ("smollm3-3b", 128, 5e6, NoScaling()),
        ("phi-2", 32, 1e4, NoScaling()),
        ("phi-4", 128, 2.5e5, NoScaling()),
        ("deepseek-v2-lite", 64, 1e4, deepseek(0.707)),
        ("deepseek-v3", 64, 1e4, deepseek(1.0)),
    ],
)
def test_rope_of_published_files(name: str, width: int, base: float, scaling: Scaling) -> None:
    config, _ = RopeKeys.read(fixture(name), source=name, allow_unknown_keys=True)
    spelling = config.rope_spelling(default_theta=1e4, width=width)
    assert spelling.single == RopeVariant(base=base, width=width, scaling=scaling)
    assert spelling.notes == ()


def test_longrope_of_phi_3_5() -> None:
    """Its trained length stands beside the block, and its magnitude follows from the two lengths."""
    raw = fixture("phi-3.5-mini-instruct")
    config, _ = RopeKeys.read(raw, source="phi", allow_unknown_keys=True)
    variant = config.rope_spelling(
        default_theta=1e4, width=96, original_length=raw["original_max_position_embeddings"]
    ).single
    assert isinstance(variant.scaling, LongRopeScaling)
    assert variant.scaling.magnitudes == pytest.approx((1.19023807, 1.19023807), rel=1e-8)
    assert [variant.scaling.regime(length) for length in (4096, 4097)] == [0, 1]
    short, long = variant.inverse_frequencies()
    assert float(short[-1] / long[-1]) == pytest.approx(64.83999633789062 / 2.8399994373321533, rel=1e-6)
