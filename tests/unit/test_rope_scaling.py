"""Every RoPE scaling against published numbers and against transformers, kind by kind."""

import math
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.phi.modeling_phi import PhiRotaryEmbedding

from fuel_core.config import RopeKeys
from fuel_core.plans import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    NoScaling,
    RopeVariant,
    YarnScaling,
    dynamic_base,
    yarn_magnitude,
)

MAX_LENGTH = 1024
ORIGINAL = 256


def table(variant: RopeVariant) -> list[float]:
    """The only table of a recipe."""
    (row,) = variant.inverse_frequencies()
    return [float(value) for value in row]


def close(actual: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(actual, wanted.float(), rtol=1e-6, atol=0)


class TestUnscaled:
    def test_the_geometric_series(self) -> None:
        wanted = [10_000.0 ** (-2 * pair / 64) for pair in range(32)]
        assert table(RopeVariant(base=10_000.0, width=64)) == pytest.approx(wanted, rel=1e-6)
        assert RopeVariant(base=10_000.0, width=64).scaling.magnitudes == (1.0,)


class TestLlama3:
    PUBLISHED = RopeVariant(
        base=500_000.0,
        width=128,
        scaling=Llama3Scaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_length=8192),
    )

    def test_the_table_of_llama_3_1(self) -> None:
        """The scaled table was computed and the unscaled one returned: short prompts looked fine, text
        past 29,000 tokens was gibberish. Values: Llama 3.1's rule in float64."""
        scaled = table(self.PUBLISHED)
        wanted = {
            29: 0.00216657076,
            31: 0.000856751413,
            34: 0.000178507813,
            35: 9.55621235e-05,
            63: 3.06892599e-07,
        }
        assert {pair: scaled[pair] for pair in wanted} == pytest.approx(wanted, rel=1e-5)

    def test_which_pairs_are_kept_blended_and_divided(self) -> None:
        scaled, plain = table(self.PUBLISHED), table(RopeVariant(base=500_000.0, width=128))
        kept = [pair for pair in range(64) if scaled[pair] == plain[pair]]
        divided = [pair for pair in range(64) if scaled[pair] == pytest.approx(plain[pair] / 8, rel=1e-6)]
        assert kept == list(range(29))
        assert divided == list(range(35, 64))


class TestYarn:
    """DeepSeek's blocks: cos and sin take one ratio, the softmax scale the square of another factor."""

    V3 = YarnScaling(factor=40.0, original_length=4096, mscale=1.0, mscale_all_dim=1.0)
    V2_LITE = YarnScaling(factor=40.0, original_length=4096, mscale=0.707, mscale_all_dim=0.707)
    PAPER = YarnScaling(factor=40.0, original_length=4096)

    @pytest.mark.parametrize(
        ("scaling", "magnitude", "softmax_scale"),
        [(V3, 1.0, 0.135233779), (V2_LITE, 1.0, 0.114721387), (PAPER, 1.36888795, 0.0721687836)],
        ids=["v3", "v2-lite", "no mscale_all_dim"],
    )
    def test_both_corrections(self, scaling: YarnScaling, magnitude: float, softmax_scale: float) -> None:
        """The ratio on cos and sin was applied and the softmax factor forgotten, or taken from mscale:
        position 0 still matches, since a softmax over one key is 1 at any scale."""
        assert scaling.magnitudes == (pytest.approx(magnitude, rel=1e-8),)
        assert 192**-0.5 * scaling.softmax_factor == pytest.approx(softmax_scale, rel=1e-8)

    def test_one_sided_mscale_follows_deepseek(self) -> None:
        """transformers takes the ratio only when both keys are there; DeepSeek's code, always."""
        only_all_dim = YarnScaling(factor=40.0, original_length=4096, mscale_all_dim=0.5)
        assert only_all_dim.magnitudes == (pytest.approx(yarn_magnitude(40, 1) / yarn_magnitude(40, 0.5)),)
        only_mscale = YarnScaling(factor=40.0, original_length=4096, mscale=0.5)
        assert only_mscale.magnitudes == (pytest.approx(0.05 * math.log(40) + 1),)
        assert only_mscale.softmax_factor == 1.0

    def test_no_growth_up_to_factor_1(self) -> None:
        assert yarn_magnitude(1.0, 1.0) == yarn_magnitude(0.5, 1.0) == 1.0
        assert yarn_magnitude(1.5, 1.0) == pytest.approx(0.1 * math.log(1.5) + 1)
        assert yarn_magnitude(math.e, 1.0) == pytest.approx(1.1)

    def test_an_attention_factor_replaces_the_magnitude(self) -> None:
        stated = YarnScaling(factor=40.0, original_length=4096, mscale=0.5, attention_factor=0.75)
        assert stated.magnitudes == (0.75,)

    def test_the_table_of_deepseek(self) -> None:
        """The ramp runs from pair 10 to pair 23: its ends are floored and ceiled, its pairs counted to
        R, not to R/2."""
        scaled = table(RopeVariant(base=10_000.0, width=64, scaling=self.V3))
        plain = table(RopeVariant(base=10_000.0, width=64))
        wanted = {10: 0.0562341, 16: 0.0055, 23: 3.33380e-05, 31: 3.33380e-06}
        assert {pair: scaled[pair] for pair in wanted} == pytest.approx(wanted, rel=1e-5)
        assert [pair for pair in range(32) if scaled[pair] == plain[pair]] == list(range(11))
        interpolated = [
            pair for pair in range(32) if scaled[pair] == pytest.approx(plain[pair] / 40, rel=1e-6)
        ]
        assert interpolated == list(range(23, 32))

    @pytest.mark.parametrize(("original", "divisor"), [(10**9, 1.0), (2, 4.0)])
    def test_a_ramp_outside_of_the_pairs(self, original: int, divisor: float) -> None:
        """Where every pair turns often enough, clamping one end of the ramp alone turns it round and
        interpolates all pairs; where none does, it keeps all."""
        scaling = YarnScaling(factor=4.0, original_length=original)
        scaled = table(RopeVariant(base=100.0, width=16, scaling=scaling))
        plain = table(RopeVariant(base=100.0, width=16))
        assert scaled[1:] == pytest.approx([value / divisor for value in plain[1:]], rel=1e-6)

    def test_it_reaches_what_it_was_made_for(self) -> None:
        assert self.V3.reach == 163_840
        assert self.V3.position_limit is None


class TestDynamic:
    def test_the_base_follows_the_length_and_comes_back(self) -> None:
        """The base was not restored after a long sequence, or became one constant for every length."""
        bases = [dynamic_base(10_000.0, 128, 2.0, 2048, length) for length in (1000, 4096, 8192, 1000)]
        assert bases == pytest.approx([10_000.0, 30_527.7367, 72_195.8601, 10_000.0], rel=1e-8)

    def test_a_limit_below_the_trained_length_changes_nothing(self) -> None:
        """Served shorter than trained, the formula gave a negative base, and NaN."""
        assert dynamic_base(10_000.0, 128, 2.0, 2048, 512) == 10_000.0
        served = DynamicScaling(factor=2.0, original_length=2048, frozen_length=512)
        frozen = RopeVariant(base=10_000.0, width=128, scaling=served)
        plain = RopeVariant(base=10_000.0, width=128).inverse_frequencies()
        assert torch.equal(frozen.inverse_frequencies(), plain)

    def test_unfrozen_it_is_plain_rope_with_a_limit(self) -> None:
        """Keys cached under one base contradict queries under another, so beyond the trained length
        the recipe is undefined rather than wrong."""
        scaling = DynamicScaling(factor=2.0, original_length=2048)
        variant = RopeVariant(base=10_000.0, width=128, scaling=scaling)
        plain = RopeVariant(base=10_000.0, width=128).inverse_frequencies()
        assert torch.equal(variant.inverse_frequencies(), plain)
        assert (scaling.position_limit, scaling.reach) == (2048, None)

    def test_frozen_it_is_one_other_base_up_to_that_length(self) -> None:
        scaling = DynamicScaling(factor=2.0, original_length=2048, frozen_length=8192)
        variant = RopeVariant(base=10_000.0, width=128, scaling=scaling)
        stretched = RopeVariant(base=dynamic_base(10_000.0, 128, 2.0, 2048, 8192), width=128)
        close(variant.inverse_frequencies(), stretched.inverse_frequencies())
        assert (scaling.position_limit, scaling.reach) == (8192, 8192)


class TestLongRope:
    SHORT, LONG = (1.0, 1.25, 1.5, 2.0), (2.0, 4.0, 8.0, 16.0)

    def scaling(self, **changes: Any) -> LongRopeScaling:
        stated = {
            "short_factor": self.SHORT,
            "long_factor": self.LONG,
            "original_length": 16,
            "magnitude": 1.25,
        }
        return LongRopeScaling(**{**stated, **changes})

    def test_the_choice_goes_by_the_sequence(self) -> None:
        """Chosen once from the allocated cache, the long factors hurt every short chat."""
        assert [self.scaling().regime(length) for length in (0, 1, 16, 17, 64)] == [0, 0, 0, 1, 1]
        assert self.scaling().regimes == 2
        assert self.scaling().switch_length == 16

    def test_each_table_divides_by_its_factors(self) -> None:
        short, long = RopeVariant(base=100.0, width=8, scaling=self.scaling()).inverse_frequencies()
        plain = [100.0 ** (-2 * pair / 8) for pair in range(4)]
        divided = [
            [value / factor for value, factor in zip(plain, factors, strict=True)]
            for factors in (self.SHORT, self.LONG)
        ]
        close(short, torch.tensor(divided[0]))
        close(long, torch.tensor(divided[1]))

    def test_the_published_magnitude(self) -> None:
        """Phi-3.5: 131,072 tokens over 4,096."""
        magnitude = LongRopeScaling.published_magnitude(131_072 / 4096, 4096)
        assert magnitude == pytest.approx(1.19023807, rel=1e-8)
        assert LongRopeScaling.published_magnitude(1.0, 4096) == 1.0
        assert LongRopeScaling.published_magnitude(0.5, 4096) == 1.0

    def test_one_magnitude_unless_each_table_states_its_own(self) -> None:
        assert self.scaling().magnitudes == (1.25, 1.25)
        assert self.scaling(short_mscale=1.1).magnitudes == (1.1, 1.25)
        assert self.scaling(long_mscale=1.3).magnitudes == (1.25, 1.3)


RECIPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 3.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": ORIGINAL,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": ORIGINAL},
    "yarn, own betas": {
        "rope_type": "yarn",
        "factor": 16.0,
        "original_max_position_embeddings": ORIGINAL,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
    },
    "yarn, fractional ramp": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": ORIGINAL,
        "truncate": False,
    },
    "yarn, ramp beyond the pairs": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": ORIGINAL,
        "rope_theta": 20.0,
    },
    "yarn, null factor": {
        "rope_type": "yarn",
        "factor": None,
        "original_max_position_embeddings": ORIGINAL,
    },
    "yarn, attention factor": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": ORIGINAL,
        "attention_factor": 1.5,
    },
    "yarn, both mscales": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": ORIGINAL,
        "mscale": 1.0,
        "mscale_all_dim": 0.5,
    },
    "longrope": {"rope_type": "longrope", "original_max_position_embeddings": ORIGINAL},
    "longrope, factor": {
        "rope_type": "longrope",
        "original_max_position_embeddings": ORIGINAL,
        "factor": 2.0,
    },
    "longrope, attention factor": {
        "rope_type": "longrope",
        "original_max_position_embeddings": ORIGINAL,
        "attention_factor": 1.5,
    },
}
LENGTHS = (ORIGINAL, ORIGINAL + 1, MAX_LENGTH, 4 * MAX_LENGTH)


def their_table(
    recipe: dict[str, Any], head_dim: int, partial: float, length: int
) -> tuple[torch.Tensor, float]:
    """transformers' frequencies and magnitude, of a config that nobody else holds (it writes to it)."""
    config = LlamaConfig(
        hidden_size=4 * head_dim,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=head_dim,
        max_position_embeddings=MAX_LENGTH,
        rope_parameters={"rope_theta": 5e5, **recipe, "partial_rotary_factor": partial},
    )
    kind = recipe["rope_type"]
    if kind == "default":
        frequencies, magnitude = PhiRotaryEmbedding.compute_default_rope_parameters(config)
    else:
        frequencies, magnitude = ROPE_INIT_FUNCTIONS[kind](config, seq_len=length)
    return frequencies, float(magnitude)


@pytest.mark.parametrize("partial", [1.0, 0.75, 0.5])
@pytest.mark.parametrize("head_dim", [64, 96, 128])
@pytest.mark.parametrize("name", RECIPES)
def test_tables_and_magnitudes_equal_transformers(name: str, head_dim: int, partial: float) -> None:
    """Tiny heads hide the YaRN ramp, and full width hides a table over the whole head, so: heads of 64
    to 128 dimensions, all or some of them rotated, on both sides of the trained length."""
    width = int(head_dim * partial)
    recipe = dict(RECIPES[name])
    if recipe["rope_type"] == "longrope":
        recipe["short_factor"] = [1.0 + pair / width for pair in range(width // 2)]
        recipe["long_factor"] = [1.0 + pair for pair in range(width // 2)]
    config, _ = RopeKeys.read(
        {
            "vocab_size": 8,
            "hidden_size": 4 * head_dim,
            "num_hidden_layers": 1,
            "max_position_embeddings": MAX_LENGTH,
            "rope_theta": 5e5,
            "rope_scaling": recipe,
        },
        source="a test",
    )
    variant = config.rope_spelling(default_theta=1.0, width=width).single
    tables, scaling = variant.inverse_frequencies(), variant.scaling
    assert tables.dtype == torch.float32
    assert tables.shape == (scaling.regimes, width // 2)
    for length in LENGTHS:
        if scaling.position_limit is not None and length > scaling.position_limit:
            continue
        frequencies, magnitude = their_table(recipe, head_dim, partial, length)
        regime = scaling.regime(length)
        close(tables[regime], frequencies)
        assert scaling.magnitudes[regime] == pytest.approx(magnitude, rel=1e-6)


@pytest.mark.parametrize("length", LENGTHS)
def test_a_frozen_dynamic_base_equals_transformers_at_that_length(length: int) -> None:
    scaling = DynamicScaling(factor=2.0, original_length=MAX_LENGTH, frozen_length=length)
    variant = RopeVariant(base=5e5, width=96, scaling=scaling)
    close(variant.inverse_frequencies()[0], their_table(RECIPES["dynamic"], 128, 0.75, length)[0])


def test_the_kinds_compared_differ() -> None:
    """Non-vacuity: scalings that all gave the plain table would agree with nothing but "default"."""
    tables = {
        tuple(their_table(recipe, 128, 1.0, MAX_LENGTH)[0].tolist())
        for name, recipe in RECIPES.items()
        if name in ("default", "linear", "llama3", "yarn", "yarn, own betas", "yarn, fractional ramp")
    }
    assert len(tables) == 6


def test_kinds_are_named_as_in_config_json() -> None:
    kinds = (NoScaling, LinearScaling, DynamicScaling, Llama3Scaling, YarnScaling, LongRopeScaling)
    assert [kind.kind for kind in kinds] == ["none", "linear", "dynamic", "llama3", "yarn", "longrope"]
