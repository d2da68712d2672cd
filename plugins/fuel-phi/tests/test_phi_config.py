"""Phi's config.json: what is absent, which part of a head is rotated, what is refused."""

from typing import Any

import pytest

from fuel_core.config import RopeOptions
from fuel_core.errors import ConfigError
from fuel_core.plans import AttentionPlan, KVSlots, LayerPlan, MLPPlan, ModelPlan, NormPlan
from fuel_phi.phi import PhiConfig, plan

BASE: dict[str, Any] = {
    "model_type": "phi",
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
}


def planned(**changes: Any) -> ModelPlan:
    config, _ = PhiConfig.read({**BASE, **changes}, source="here/config.json")
    return plan(config, RopeOptions())


def mixer(model: ModelPlan) -> AttentionPlan:
    found = model.layers[0].mixer
    assert isinstance(found, AttentionPlan)
    return found


def test_absent_keys() -> None:
    model = planned()
    assert model.norm == NormPlan("layer", 1e-5)
    assert (model.rope.variants[0].base, model.rope.variants[0].width) == (1e4, 8)
    attention = AttentionPlan(
        query_heads=4, kv_heads=4, head_dim=16, scale=0.25, qkv_bias=True, out_bias=True, qk_norm=None
    )
    mlp = MLPPlan(width=128, activation="gelu_new", bias=True)
    assert set(model.layers) == {LayerPlan(attention, mlp, parallel=True)}
    assert (model.tied, model.head_bias) == (False, True)
    assert model.notes == ()


def test_null_is_absent() -> None:
    """Published files of Phi have a null num_key_value_heads, at which others crashed."""
    nulls = dict.fromkeys(
        ("num_key_value_heads", "head_dim", "rope_theta", "rope_scaling", "partial_rotary_factor")
    )
    assert planned(**nulls) == planned()


def test_stated_keys() -> None:
    model = planned(
        num_key_value_heads=2,
        layer_norm_eps=1e-3,
        rope_theta=50.0,
        partial_rotary_factor=0.4,
        qk_layernorm=True,
        hidden_act="relu",
    )
    assert mixer(model).kv_heads == 2
    assert model.cache.layers[0] == KVSlots(2, 16)
    assert mixer(model).qk_norm == model.norm == NormPlan("layer", 1e-3)
    assert (model.rope.variants[0].base, model.rope.variants[0].width) == (50.0, 6)
    assert model.layers[0].feed_forward == MLPPlan(width=128, activation="relu", bias=True)


def test_the_share_may_stand_in_the_recipe() -> None:
    """As transformers 5 saves it."""
    recipe = {"rope_type": "default", "rope_theta": 50.0, "partial_rotary_factor": 0.25}
    assert planned(rope_parameters=recipe) == planned(rope_theta=50.0, partial_rotary_factor=0.25)


@pytest.mark.parametrize("share", [0.2, 0.05], ids=["odd", "none"])
def test_a_width_that_makes_no_pairs(share: float) -> None:
    with pytest.raises(ConfigError, match=r"head_dim \(16\) times partial_rotary_factor \(0\.\d+\)"):
        planned(partial_rotary_factor=share)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor is 1.5"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings is True"),
        ({"layer_norm_eps": 0.0}, "layer_norm_eps is 0.0"),
        ({"rms_norm_eps": 1e-5}, "rms_norm_eps: nothing in fuel or this family reads it"),
        ({"sliding_window": 64}, "sliding_window: nothing"),
    ],
)
def test_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        planned(**changes)


def test_dynamic_ntk_takes_the_user_s_choice() -> None:
    dynamic = {"rope_scaling": {"type": "dynamic", "factor": 4.0}}
    assert planned(**dynamic).position_limit == 256
    config, _ = PhiConfig.read({**BASE, **dynamic}, source="here/config.json")
    assert plan(config, RopeOptions(dynamic_ntk="frozen")).position_limit == 1024
