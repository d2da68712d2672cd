"""Qwen3's config.json: heads of 128 dimensions, norms on q and k, biases everywhere or nowhere."""

from typing import Any

import pytest
import torch

from fuel_core.blocks import Attention
from fuel_core.errors import ConfigError
from fuel_core.plans import AttentionPlan, ModelPlan, NormPlan
from fuel_qwen.architecture import QwenOptions
from fuel_qwen.qwen3 import Qwen3Config, build, plan

BASE: dict[str, Any] = {
    "model_type": "qwen3",
    "vocab_size": 96,
    "hidden_size": 80,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "max_position_embeddings": 256,
    "rope_theta": 5e5,
}


def read(**changes: Any) -> Qwen3Config:
    """BASE with changes; ``...`` takes a key away."""
    raw = {key: value for key, value in {**BASE, **changes}.items() if value is not ...}
    return Qwen3Config.read(raw, source="here/config.json")[0]


def planned(options: QwenOptions | None = None, **changes: Any) -> ModelPlan:
    return plan(read(**changes), options or QwenOptions())


def test_each_value_of_the_file_arrives() -> None:
    model = planned(rms_norm_eps=1e-5, tie_word_embeddings=True, hidden_act="gelu", attention_bias=True)
    assert (model.vocab_size, model.hidden_size, model.max_positions) == (96, 80, 256)
    assert (model.norm, model.tied) == (NormPlan("rms", 1e-5), True)
    assert model.layers[2].mixer == AttentionPlan(
        query_heads=4,
        kv_heads=2,
        head_dim=12,
        scale=12**-0.5,
        qkv_bias=True,
        out_bias=True,
        qk_norm=NormPlan("rms", 1e-5),
    )
    assert str(model.layers[2].feed_forward) == "gated mlp 128, gelu"
    assert (model.rope.variant(0).base, model.rope.variant(0).width) == (5e5, 12)
    assert model.notes == ()


@pytest.mark.parametrize("head_dim", [..., None], ids=["absent", "null"])
def test_no_head_dim_is_128(head_dim: Any) -> None:
    """Not 80 / 4: Qwen3-0.6B has 16 heads of 128 over a width of 1024."""
    mixer = planned(head_dim=head_dim).layers[0].mixer
    assert (mixer.head_dim, mixer.scale) == (128, 128**-0.5)


def test_key_value_heads_absent_and_null() -> None:
    assert planned(num_attention_heads=64, num_key_value_heads=...).layers[0].mixer.kv_heads == 32
    assert planned(num_attention_heads=64, num_key_value_heads=None).layers[0].mixer.kv_heads == 64
    assert planned(num_key_value_heads=1).layers[0].mixer.kv_heads == 1
    with pytest.raises(ConfigError, match=r"num_attention_heads \(4\) .* num_key_value_heads \(32\)"):
        read(num_key_value_heads=...)


def test_null_key_value_heads_beside_a_broken_count_name_that_count() -> None:
    """A validator that reads another key must not crash where that key is unreadable."""
    with pytest.raises(ConfigError, match="num_attention_heads is 'four'"):
        read(num_attention_heads="four", num_key_value_heads=None)


def test_absent_keys() -> None:
    model = planned()
    assert (model.norm.eps, model.tied, model.layers[0].feed_forward.activation) == (1e-6, False, "silu")
    assert (model.layers[0].mixer.qkv_bias, model.layers[0].mixer.out_bias) == (False, False)


def test_an_absent_base_is_the_published_one_and_says_so() -> None:
    model = planned(rope_theta=...)
    assert model.rope.variant(0).base == 1e6
    (note,) = model.notes
    for part in ("rope_theta is absent", "1e+06", "1e4", "absent_rope_theta"):
        assert part in note
    assert planned(QwenOptions(absent_rope_theta=1e4), rope_theta=...).rope.variant(0).base == 1e4


@pytest.mark.parametrize("bias", [True, False])
def test_projections_norms_and_biases(bias: bool) -> None:
    """Qwen3-4B's shape: 32 heads of 128 are wider than the model."""
    config = read(
        hidden_size=2560,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        num_hidden_layers=1,
        attention_bias=bias,
    )
    with torch.device("meta"):
        attention = build(config, plan(config, QwenOptions())).layers[0].mixer
    assert isinstance(attention, Attention)
    assert dict(attention.qkv.parts) == {"q": 4096, "k": 1024, "v": 1024}
    assert attention.qkv.weight.shape == (6144, 2560)
    assert attention.out.weight.shape == (2560, 4096)
    assert [attention.q_norm.weight.shape, attention.k_norm.weight.shape] == [(128,), (128,)]
    assert [attention.qkv.bias is not None, attention.out.bias is not None] == [bias, bias]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"head_dim": 7}, "head_dim .* rotary width of 7"),
        ({"head_dim": 0}, "head_dim is 0"),
        ({"attention_bias": None}, "attention_bias is None"),
        ({"num_experts": 8}, "num_experts"),
    ],
)
def test_nonsense_names_its_key(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        planned(**changes)
