"""Phi-3.5-MoE's config.json: what is absent, what its router takes, what is refused."""

from typing import Any

import pytest

from fuel_core.errors import ConfigError
from fuel_core.plans import LongRopeScaling, MaskPlan, ModelPlan, MoEPlan, NormPlan
from fuel_phi.long_context import NoOptions
from fuel_phi.phimoe import PhimoeConfig, plan
from fuel_phi.sparse_mixer import SparseMixerPlan

BASE: dict[str, Any] = {
    "model_type": "phimoe",
    "vocab_size": 96,
    "hidden_size": 128,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 16,
    "max_position_embeddings": 512,
}

LONGROPE: dict[str, Any] = {
    "type": "longrope",
    "short_factor": [1.0] * 4,
    "long_factor": [2.0] * 4,
    "short_mscale": 1.25,
    "long_mscale": 1.5,
    "original_max_position_embeddings": 64,
}


def planned(**changes: Any) -> ModelPlan:
    config, _ = PhimoeConfig.read({**BASE, **changes}, source="here/config.json")
    return plan(config, NoOptions())


def experts(model: ModelPlan) -> MoEPlan:
    found = model.layers[0].feed_forward
    assert isinstance(found, MoEPlan)
    return found


def test_absent_keys() -> None:
    model = planned()
    assert model.norm == NormPlan("layer", 1e-5)
    attention = model.layers[0].mixer
    assert (attention.kv_heads, attention.qkv_bias, attention.out_bias) == (8, False, False)
    assert (model.rope.variants[0].base, model.rope.variants[0].width) == (1e6, 8)
    assert model.mask == MaskPlan.dense(2)
    assert (model.tied, model.head_bias) == (False, False)
    assert experts(model) == MoEPlan(
        router=SparseMixerPlan(experts=16, eps=0.01),
        expert_width=24,
        activation="silu",
        shared=None,
        shared_gate=False,
    )
    assert model.notes == ()


def test_null_key_value_heads_are_one_for_each_query_head() -> None:
    assert planned(num_key_value_heads=None).layers[0].mixer.kv_heads == 16


def test_stated_keys() -> None:
    model = planned(
        num_key_value_heads=4,
        rms_norm_eps=1e-3,
        attention_bias=True,
        lm_head_bias=True,
        num_local_experts=4,
        num_experts_per_tok=2,
        router_jitter_noise=0.3,
        sliding_window=32,
        hidden_act="gelu",
    )
    attention = model.layers[0].mixer
    assert (attention.kv_heads, attention.qkv_bias, attention.out_bias) == (4, True, True)
    assert model.norm == NormPlan("layer", 1e-3)
    assert model.head_bias
    assert experts(model).router == SparseMixerPlan(experts=4, eps=0.3)
    assert experts(model).activation == "gelu"
    assert model.mask == MaskPlan((32,), (0, 0))


def test_both_magnitudes_are_stated() -> None:
    model = planned(rope_scaling=LONGROPE)
    scaling = model.rope.variants[0].scaling
    assert isinstance(scaling, LongRopeScaling)
    assert scaling.magnitudes == (1.25, 1.5)
    assert model.switch_length == 64


@pytest.mark.parametrize("key", ["short_mscale", "long_mscale"])
def test_a_magnitude_that_is_not_stated(key: str) -> None:
    recipe = {name: value for name, value in LONGROPE.items() if name != key}
    with pytest.raises(ConfigError, match="rope_scaling needs short_mscale and long_mscale"):
        planned(rope_scaling=recipe)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_experts_per_tok": 1}, "num_experts_per_tok is 1"),
        ({"num_local_experts": 1}, "num_local_experts is 1"),
        ({"router_jitter_noise": -0.1}, "router_jitter_noise is -0.1"),
        ({"lm_head_bias": True, "tie_word_embeddings": True}, "lm_head_bias and tie_word_embeddings"),
        ({"partial_rotary_factor": 0.75}, "partial_rotary_factor: nothing in fuel or this family reads it"),
        ({"norm_topk_prob": True}, "norm_topk_prob: nothing"),
    ],
)
def test_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        planned(**changes)


def test_training_keys_change_nothing() -> None:
    training = {"input_jitter_noise": 0.01, "router_aux_loss_coef": 0.001, "output_router_logits": True}
    assert planned(**training) == planned()
