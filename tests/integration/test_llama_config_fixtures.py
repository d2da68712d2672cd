"""Published config.json values of the Llama families: the plan that each must give.

The values stand in ``tests/fixtures/configs``, as ``test_config_fixtures`` says.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fuel_core.config import Fate, read_json_object
from fuel_core.plans import (
    AttentionPlan,
    CacheSpec,
    GatedMLPPlan,
    KVSlots,
    LayerPlan,
    Llama3Scaling,
    MaskPlan,
    ModelPlan,
    NormPlan,
    NoScaling,
    RopePlan,
    RopeVariant,
    Scaling,
    YarnScaling,
)
from fuel_core.registry import Registry

FOLDER = Path(__file__).parents[1] / "fixtures" / "configs"
UNSCALED = NoScaling()


def fixture(name: str) -> dict[str, Any]:
    return read_json_object(FOLDER / f"{name}.json")


@dataclass(frozen=True, kw_only=True)
class Published:
    """What a published model has to be; no projection has a bias."""

    family: str
    vocab_size: int
    hidden_size: int
    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    context: int
    cache_bytes: int
    eps: float = 1e-5
    tied: bool = False
    base: float = 1e4
    scaling: Scaling = UNSCALED
    window: int | None = None
    without_rope: tuple[int, ...] = ()
    dtype: str = "bfloat16"

    @property
    def plan(self) -> ModelPlan:
        attention = AttentionPlan(
            query_heads=self.query_heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            scale=self.head_dim**-0.5,
            qkv_bias=False,
            out_bias=False,
        )
        recipe = RopeVariant(base=self.base, width=self.head_dim, scaling=self.scaling)
        rotated = tuple(None if layer in self.without_rope else 0 for layer in range(self.layers))
        return ModelPlan(
            family=self.family,
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            max_positions=self.context,
            norm=NormPlan("rms", self.eps),
            tied=self.tied,
            embed_scale=None,
            head_bias=False,
            layers=(LayerPlan(attention, GatedMLPPlan(width=self.mlp, activation="silu")),) * self.layers,
            mask=MaskPlan((self.window,), (0,) * self.layers),
            rope=RopePlan((recipe,), rotated),
            cache=CacheSpec.uniform(KVSlots(self.kv_heads, self.head_dim), self.layers),
        )


def llama3(factor: float) -> Llama3Scaling:
    return Llama3Scaling(factor=factor, low_freq_factor=1.0, high_freq_factor=4.0, original_length=8192)


MISTRAL: dict[str, Any] = {"family": "mistral", "query_heads": 32, "kv_heads": 8, "head_dim": 128}
MISTRAL_7B: dict[str, Any] = {
    **MISTRAL,
    "hidden_size": 4096,
    "layers": 32,
    "mlp": 14_336,
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
    "mlp": 11_008,
    "context": 65_536,
    "cache_bytes": 73_728,
    "eps": 1e-6,
    "tied": True,
    "base": 5e6,
    "without_rope": (3, 7, 11, 15, 19, 23, 27, 31, 35),
}

PUBLISHED = {
    "llama-2-7b": Published(
        family="llama",
        vocab_size=32_000,
        hidden_size=4096,
        layers=32,
        query_heads=32,
        kv_heads=32,
        head_dim=128,
        mlp=11_008,
        context=4096,
        cache_bytes=524_288,
        dtype="float16",
    ),
    "llama-3.1-8b-instruct": Published(
        family="llama",
        vocab_size=128_256,
        hidden_size=4096,
        layers=32,
        query_heads=32,
        kv_heads=8,
        head_dim=128,
        mlp=14_336,
        context=131_072,
        cache_bytes=131_072,
        base=5e5,
        scaling=llama3(8.0),
    ),
    "llama-3.2-1b-instruct": Published(
        family="llama",
        vocab_size=128_256,
        hidden_size=2048,
        layers=16,
        query_heads=32,
        kv_heads=8,
        head_dim=64,
        mlp=8192,
        context=131_072,
        cache_bytes=32_768,
        base=5e5,
        scaling=llama3(32.0),
        tied=True,
    ),
    "tinyllama-1.1b-chat": Published(
        family="llama",
        vocab_size=32_000,
        hidden_size=2048,
        layers=22,
        query_heads=32,
        kv_heads=4,
        head_dim=64,
        mlp=5632,
        context=2048,
        cache_bytes=22_528,
    ),
    "smollm2-135m": Published(
        family="llama",
        vocab_size=49_152,
        hidden_size=576,
        layers=30,
        query_heads=9,
        kv_heads=3,
        head_dim=64,
        mlp=1536,
        context=8192,
        cache_bytes=23_040,
        base=1e5,
        tied=True,
    ),
    "mistral-7b-v0.1": Published(**MISTRAL_7B, vocab_size=32_000, window=4096),
    "mistral-7b-v0.3": Published(**MISTRAL_7B, vocab_size=32_768, base=1e6),
    "mistral-nemo-base-2407": Published(
        **MISTRAL,
        vocab_size=131_072,
        hidden_size=5120,
        layers=40,
        mlp=14_336,
        context=128_000,
        cache_bytes=163_840,
        base=1e6,
    ),
    "smollm3-3b": Published(**SMOLLM3),
    "smollm3-3b-yarn": Published(**SMOLLM3, scaling=YarnScaling(factor=2.0, original_length=65_536)),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_each_gives_its_plan(name: str) -> None:
    wanted = PUBLISHED[name]
    family = Registry.discover().family(wanted.family)
    config, ledger = family.config.read(fixture(name), source=name)
    plan = family.plan(config, family.options())
    assert plan == wanted.plan
    assert plan.notes == ()
    assert plan.position_limit == (131_072 if name == "smollm3-3b-yarn" else wanted.context)
    assert plan.cache.bytes_per_token(2) == wanted.cache_bytes
    assert config.stored_dtype == wanted.dtype
    assert ledger.of(Fate.REFUSED) == ()
    assert [entry.key for entry in ledger] == list(fixture(name))


def test_they_differ() -> None:
    """Non-vacuity: a reader that returned one preset would pass a test of one file."""
    assert len({wanted.plan for wanted in PUBLISHED.values()}) == len(PUBLISHED)
