"""Published config.json values of the Phi families: the plan that each must give.

The values stand in ``tests/fixtures/configs``, as ``test_config_fixtures`` says. Phi-3.5-MoE itself is there
as the shrunken checkpoint that other libraries test with: the same keys, smaller sizes.
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
    LongRopeScaling,
    MaskPlan,
    MLPPlan,
    ModelPlan,
    MoEPlan,
    NormPlan,
    NoScaling,
    RopePlan,
    RopeVariant,
    Scaling,
)
from fuel_core.registry import Registry
from fuel_phi.sparse_mixer import SparseMixerPlan

FOLDER = Path(__file__).parents[1] / "fixtures" / "configs"
UNSCALED = NoScaling()
RMS, LAYER = NormPlan("rms", 1e-5), NormPlan("layer", 1e-5)


def fixture(name: str) -> dict[str, Any]:
    return read_json_object(FOLDER / f"{name}.json")


@dataclass(frozen=True, kw_only=True)
class Phi:
    """What a published Phi has to be; every layer is the same."""

    family: str
    vocab_size: int
    hidden_size: int
    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int
    rotary_width: int
    feed_forward: MLPPlan | GatedMLPPlan | MoEPlan
    context: int
    dtype: str
    window: int | None = None
    base: float = 1e4
    scaling: Scaling = UNSCALED
    switch_length: int | None = None
    tied: bool = False

    @property
    def plan(self) -> ModelPlan:
        biased = self.family != "phi3"
        attention = AttentionPlan(
            query_heads=self.query_heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            scale=self.head_dim**-0.5,
            qkv_bias=biased,
            out_bias=biased,
        )
        recipe = RopeVariant(base=self.base, width=self.rotary_width, scaling=self.scaling)
        layer = LayerPlan(attention, self.feed_forward, parallel=self.family == "phi")
        return ModelPlan(
            family=self.family,
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            max_positions=self.context,
            norm=LAYER if biased else RMS,
            tied=self.tied,
            embed_scale=None,
            head_bias=biased,
            layers=(layer,) * self.layers,
            mask=MaskPlan((self.window,), (0,) * self.layers),
            rope=RopePlan.single(recipe, self.layers),
            cache=CacheSpec.uniform(KVSlots(self.kv_heads, self.head_dim), self.layers),
        )


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


PHI_3: dict[str, Any] = {
    "family": "phi3",
    "vocab_size": 32_064,
    "hidden_size": 3072,
    "layers": 32,
    "query_heads": 32,
    "kv_heads": 32,
    "head_dim": 96,
    "rotary_width": 96,
    "feed_forward": silu(8192),
    "dtype": "bfloat16",
}

PHI: dict[str, Phi] = {
    "phi-1_5": Phi(
        family="phi",
        vocab_size=51_200,
        hidden_size=2048,
        layers=24,
        query_heads=32,
        kv_heads=32,
        head_dim=64,
        rotary_width=32,
        feed_forward=gelu(8192),
        context=2048,
        dtype="float16",
    ),
    "phi-2": Phi(
        family="phi",
        vocab_size=51_200,
        hidden_size=2560,
        layers=32,
        query_heads=32,
        kv_heads=32,
        head_dim=80,
        rotary_width=32,
        feed_forward=gelu(10_240),
        context=2048,
        dtype="float16",
    ),
    "phi-3-mini-4k-instruct": Phi(**PHI_3, context=4096, window=2047),
    "phi-3.5-mini-instruct": Phi(
        **PHI_3,
        context=131_072,
        window=262_144,
        scaling=longrope("phi-3.5-mini-instruct"),
        switch_length=4096,
    ),
    "phi-4": Phi(
        family="phi3",
        vocab_size=100_352,
        hidden_size=5120,
        layers=40,
        query_heads=40,
        kv_heads=10,
        head_dim=128,
        rotary_width=128,
        feed_forward=silu(17_920),
        context=16_384,
        base=2.5e5,
        dtype="bfloat16",
    ),
    "phi-4-mini-instruct": Phi(
        family="phi3",
        vocab_size=200_064,
        hidden_size=3072,
        layers=32,
        query_heads=24,
        kv_heads=8,
        head_dim=128,
        rotary_width=96,
        feed_forward=silu(8192),
        context=131_072,
        window=262_144,
        scaling=longrope("phi-4-mini-instruct"),
        switch_length=4096,
        tied=True,
        dtype="bfloat16",
    ),
    "phi-tiny-moe-instruct": Phi(
        family="phimoe",
        vocab_size=32_064,
        hidden_size=4096,
        layers=32,
        query_heads=16,
        kv_heads=4,
        head_dim=128,
        rotary_width=128,
        feed_forward=experts(448),
        context=4096,
        window=2047,
        dtype="bfloat16",
    ),
    "phi-3.5-moe-tiny-random": Phi(
        family="phimoe",
        vocab_size=32_064,
        hidden_size=16,
        layers=2,
        query_heads=4,
        kv_heads=4,
        head_dim=4,
        rotary_width=4,
        feed_forward=experts(32),
        context=131_072,
        window=131_072,
        scaling=longrope(
            "phi-3.5-moe-tiny-random", short_mscale=1.243163121016122, long_mscale=1.243163121016122
        ),
        switch_length=4096,
        dtype="bfloat16",
    ),
}


@pytest.mark.parametrize("name", PHI)
def test_each_phi_gives_its_plan(name: str) -> None:
    wanted, raw = PHI[name], fixture(name)
    family = Registry.discover().family(raw["model_type"])
    config, ledger = family.config.read(raw, source=name)
    plan = family.plan(config, family.options())
    assert plan == wanted.plan
    assert plan.notes == ()
    assert plan.switch_length == wanted.switch_length
    assert config.stored_dtype == wanted.dtype
    assert ledger.of(Fate.REFUSED) == ()
    assert [entry.key for entry in ledger] == list(raw)


def test_the_phi_fixtures_differ() -> None:
    """Non-vacuity: a reader that returned one preset would pass a test of one file."""
    assert len({wanted.plan for wanted in PHI.values()}) == len(PHI)
