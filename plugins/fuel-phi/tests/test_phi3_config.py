"""Phi-3's config.json: the spellings of LongRoPE, the trained length, the window, fused rows."""

from typing import Any

import pytest
import torch

from fuel_core.errors import ConfigError
from fuel_core.plans import LongRopeScaling, MaskPlan, ModelPlan, NormPlan
from fuel_core.weights.names import sources
from fuel_phi.long_context import NoOptions
from fuel_phi.phi3 import WEIGHTS, Phi3Config, build, plan

BASE: dict[str, Any] = {
    "model_type": "phi3",
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 131_072,
}

FACTORS: dict[str, Any] = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
LONGROPE: dict[str, Any] = {"rope_type": "longrope", **FACTORS}


def planned(**changes: Any) -> ModelPlan:
    config, _ = Phi3Config.read({**BASE, **changes}, source="here/config.json")
    return plan(config, NoOptions())


def scaling(model: ModelPlan) -> LongRopeScaling:
    found = model.rope.variants[0].scaling
    assert isinstance(found, LongRopeScaling)
    return found


def test_absent_keys() -> None:
    model = planned()
    assert model.norm == NormPlan("rms", 1e-5)
    assert model.layers[0].mixer.kv_heads == 4
    assert (model.rope.variants[0].base, model.rope.variants[0].width) == (1e4, 16)
    assert model.mask == MaskPlan.dense(3)
    assert not model.tied
    assert model.switch_length is None
    assert model.notes == ()


def test_null_is_absent() -> None:
    nulls = dict.fromkeys(
        (
            "num_key_value_heads",
            "head_dim",
            "sliding_window",
            "rope_theta",
            "rope_scaling",
            "rope_parameters",
            "original_max_position_embeddings",
            "partial_rotary_factor",
        )
    )
    assert planned(**nulls) == planned()


def test_the_window_is_as_stated() -> None:
    """Phi-3-mini's 2047 means 2047 keys, the query's own among them."""
    assert planned(sliding_window=2047).mask == MaskPlan((2047,), (0,) * 3)
    assert planned(sliding_window=0).mask == MaskPlan.dense(3)


@pytest.mark.parametrize(
    "recipe",
    [
        {"type": "longrope", **FACTORS},
        {"rope_type": "longrope", "type": "longrope", **FACTORS},
        {"type": "su", **FACTORS},
        {"type": "yarn", **FACTORS},
        {"rope_type": "longrope", "type": "su", **FACTORS},
        {"type": "su", "original_max_position_embeddings": 4096, **FACTORS},
    ],
    ids=["type", "both", "su", "yarn", "saved-again", "length-inside"],
)
def test_longrope_under_its_names(recipe: dict[str, Any]) -> None:
    """Early files call it su, or yarn; YaRN itself on such a file would be another model."""
    assert planned(rope_scaling=recipe) == planned(rope_scaling=LONGROPE)
    assert scaling(planned(rope_scaling=recipe)).original_length == 4096


def test_longrope_as_transformers_5_saves_it() -> None:
    saved = {
        **LONGROPE,
        "short_factor": [1.0] * 6,
        "long_factor": [2.0] * 6,
        "rope_theta": 500.0,
        "partial_rotary_factor": 0.75,
        "original_max_position_embeddings": 4096,
    }
    model = planned(rope_parameters=saved, original_max_position_embeddings=4096)
    assert (model.rope.variants[0].base, model.rope.variants[0].width) == (500.0, 12)
    published = {key: saved[key] for key in ("rope_type", "short_factor", "long_factor")}
    assert model == planned(rope_theta=500.0, partial_rotary_factor=0.75, rope_scaling=published)


def test_yarn_without_factor_lists_is_refused() -> None:
    with pytest.raises(
        ConfigError, match="kind 'yarn', which in this family names LongRoPE, and states no short_factor"
    ):
        planned(rope_scaling={"type": "yarn", "factor": 4.0})


@pytest.mark.parametrize("kind", ["linear", "dynamic", "llama3"])
def test_other_scalings_are_refused(kind: str) -> None:
    """No Phi was trained with one, and what its trained length would be is nobody's rule."""
    with pytest.raises(ConfigError, match=f"rope_scaling.type is '{kind}'; this family has longrope"):
        planned(rope_scaling={"type": kind, "factor": 2.0})


@pytest.mark.parametrize(
    ("top", "inner", "length"), [(None, None, 4096), (512, None, 512), (None, 512, 512), (512, 512, 512)]
)
def test_the_trained_length(top: int | None, inner: int | None, length: int) -> None:
    """transformers puts 4096 in the place of a length that stands inside of the recipe alone."""
    recipe = LONGROPE if inner is None else {**LONGROPE, "original_max_position_embeddings": inner}
    changes = {} if top is None else {"original_max_position_embeddings": top}
    model = planned(rope_scaling=recipe, **changes)
    assert scaling(model).original_length == model.switch_length == length
    differs = (top, inner) == (None, 512)
    assert [("512 is used" in note, "4096" in note) for note in model.notes] == [(True, True)] * differs


def test_two_trained_lengths_are_refused() -> None:
    recipe = {**LONGROPE, "original_max_position_embeddings": 8192}
    with pytest.raises(ConfigError, match=r"is 4096 at the top level and 8192 in rope_scaling"):
        planned(rope_scaling=recipe, original_max_position_embeddings=4096)


def test_the_published_magnitude() -> None:
    """sqrt(1 + ln(131072 / 4096) / ln(4096))"""
    assert scaling(planned(rope_scaling=LONGROPE)).magnitudes == pytest.approx([1.19023807] * 2, rel=1e-8)


def test_factors_of_a_partial_head_count_its_pairs() -> None:
    message = r"short_factor has 8 entries.* head_dim \(16\) times partial_rotary_factor \(0\.75\)"
    with pytest.raises(ConfigError, match=message):
        planned(rope_scaling=LONGROPE, partial_rotary_factor=0.75)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_bias": True}, "attention_bias: it is True; this family runs only with False"),
        ({"mlp_bias": True}, "mlp_bias: it is True"),
        ({"lm_head_bias": True}, "lm_head_bias: it is True"),
        ({"full_attn_mod": 2}, "full_attn_mod: it is 2"),
        ({"sliding_window": -1}, "sliding_window is -1"),
        ({"partial_rotary_factor": 0.3125}, r"partial_rotary_factor \(0\.3125\) gives a rotary width of 5"),
    ],
)
def test_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        planned(**changes)


def test_the_rows_of_phi_4() -> None:
    """Engines split qkv in three equal parts, or took gate and up for each other: with 40 query and 10
    key/value heads the rows are 5120, 1280 and 1280."""
    raw = {**BASE, "hidden_size": 5120, "intermediate_size": 17_920, "num_hidden_layers": 1}
    config, _ = Phi3Config.read(
        {**raw, "num_attention_heads": 40, "num_key_value_heads": 10}, source="here/config.json"
    )
    with torch.device("meta"):
        decoder = build(config, plan(config, NoOptions()))
    stored = {source.tensor: (source.shape, source.rule.parts) for source in sources(decoder, WEIGHTS)}
    assert stored["model.layers.0.self_attn.qkv_proj.weight"] == (
        (7680, 5120),
        {"q": 5120, "k": 1280, "v": 1280},
    )
    assert stored["model.layers.0.mlp.gate_up_proj.weight"] == (
        (35_840, 5120),
        {"gate": 17_920, "up": 17_920},
    )
