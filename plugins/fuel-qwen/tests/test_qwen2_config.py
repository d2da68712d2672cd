"""Qwen2's config.json: what is absent, what the plan and the parts make of it."""

from typing import Any

import pytest
import torch

from fuel_core.errors import ConfigError
from fuel_core.plans import AttentionPlan, KVSlots, MaskPlan, ModelPlan
from fuel_qwen.architecture import QwenOptions
from fuel_qwen.qwen2 import Qwen2Config, build, plan

BASE: dict[str, Any] = {
    "model_type": "qwen2",
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 36,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rope_theta": 1e6,
}
"""Not one value is a default, so that a default cannot pass for a value that was read."""


def read(**changes: Any) -> Qwen2Config:
    """BASE with changes; ``...`` takes a key away."""
    raw = {key: value for key, value in {**BASE, **changes}.items() if value is not ...}
    return Qwen2Config.read(raw, source="here/config.json")[0]


def planned(options: QwenOptions | None = None, **changes: Any) -> ModelPlan:
    return plan(read(**changes), options or QwenOptions())


class TestValues:
    def test_each_value_of_the_file_arrives(self) -> None:
        """A reader that returns a preset passes any test of one file: see the fixtures for a second."""
        model = planned(rms_norm_eps=1e-5, tie_word_embeddings=True, hidden_act="gelu")
        assert (model.vocab_size, model.hidden_size, model.max_positions) == (96, 64, 256)
        assert (model.norm.eps, model.tied, model.embed_scale) == (1e-5, True, None)
        assert len(model.layers) == 36
        layer = model.layers[0]
        assert layer.mixer == AttentionPlan(
            query_heads=4, kv_heads=2, head_dim=16, scale=0.25, qkv_bias=True, out_bias=False
        )
        assert str(layer.feed_forward) == "gated mlp 128, gelu"
        assert model.cache.layers == (KVSlots(2, 16),) * 36
        assert model.rope.variant(0).base == 1e6
        assert model.notes == ()

    def test_absent_keys(self) -> None:
        model = planned(num_key_value_heads=...)
        assert model.layers[0].mixer.kv_heads == 4
        assert (model.norm.eps, model.tied) == (1e-6, False)
        assert model.layers[0].feed_forward.activation == "silu"

    def test_a_file_that_states_the_shape_alone(self) -> None:
        """Qwen2-7B's shape without the keys that have a default: each takes what its absence means."""
        raw = {
            "model_type": "qwen2",
            "vocab_size": 152_064,
            "hidden_size": 3584,
            "intermediate_size": 18_944,
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "max_position_embeddings": 131_072,
        }
        config, _ = Qwen2Config.read(raw, source="config.json")
        assert (config.max_window_layers, config.sliding_window) == (28, 131_072)
        assert (config.head_dim, config.layer_types, config.use_sliding_window) == (128, None, False)
        model = plan(config, QwenOptions())
        assert model.mask == MaskPlan.dense(28)
        assert model.rope.variant(27).base == 1e6

    def test_one_key_value_head_stays_one(self) -> None:
        """True multi-query attention must not be taken for "as many as query heads"."""
        assert planned(num_key_value_heads=1).layers[0].mixer.kv_heads == 1

    def test_an_absent_base_is_the_seeds_and_says_so(self) -> None:
        """transformers' class default is 1e4, and no published Qwen2 has it."""
        model = planned(rope_theta=...)
        assert model.rope.variant(0).base == 1e6
        (note,) = model.notes
        for part in ("rope_theta is absent", "1e+06", "1e4", "absent_rope_theta"):
            assert part in note
        theirs = planned(QwenOptions(absent_rope_theta=1e4), rope_theta=...)
        assert theirs.rope.variant(0).base == 1e4

    def test_a_base_inside_a_dict_is_not_absent(self) -> None:
        model = planned(rope_theta=..., rope_parameters={"rope_type": "default", "rope_theta": 5e5})
        assert model.rope.variant(0).base == 5e5
        assert model.notes == ()

    def test_dynamic_scaling_ends_at_the_trained_length(self) -> None:
        model = planned(rope_scaling={"type": "dynamic", "factor": 2.0})
        assert model.position_limit == 256
        assert torch.equal(
            model.rope.variant(0).inverse_frequencies(), planned().rope.variant(0).inverse_frequencies()
        )

    @pytest.mark.parametrize(
        "keys",
        [
            {"dtype": "bfloat16"},
            {"torch_dtype": "bfloat16"},
            {"torch_dtype": "torch.bfloat16"},
            {"dtype": "bfloat16", "torch_dtype": "bfloat16"},
        ],
        ids=str,
    )
    def test_the_stored_dtype_under_both_names(self, keys: dict[str, str]) -> None:
        assert read(**keys).stored_dtype == "bfloat16"

    def test_an_unknown_dtype(self) -> None:
        with pytest.raises(ConfigError, match="torch_dtype is 'bf17'"):
            read(torch_dtype="bf17")
        assert read().stored_dtype is None


class TestPartsFollowTheGeometry:
    @pytest.mark.parametrize(
        ("keys", "shapes", "scale", "pairs"),
        [
            (
                {"hidden_size": 5120, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128},
                {"q": (4096, 5120), "k": (1024, 5120), "v": (1024, 5120), "o": (5120, 4096)},
                0.0883883,
                64,
            ),
            (
                {"hidden_size": 1792, "num_attention_heads": 24, "num_key_value_heads": 8, "head_dim": 128},
                {"q": (3072, 1792), "k": (1024, 1792), "v": (1024, 1792), "o": (1792, 3072)},
                0.0883883,
                64,
            ),
            (
                {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": None, "head_dim": None},
                {"q": (64, 64), "k": (64, 64), "v": (64, 64), "o": (64, 64)},
                0.25,
                8,
            ),
        ],
        ids=["Mistral-Nemo", "heads that do not divide the width", "nulls"],
    )
    def test_projections_scale_and_tables(
        self, keys: dict[str, Any], shapes: dict[str, tuple[int, int]], scale: float, pairs: int
    ) -> None:
        """hidden_size / heads in place of head_dim made a RoPE table or a weight of the wrong size, and
        where 160 passed for 128, a softmax scale of 0.0790569."""
        config = read(num_hidden_layers=1, **keys)
        model = plan(config, QwenOptions())
        with torch.device("meta"):
            attention = build(config, model).layers[0].mixer
        rows = sum(shapes[part][0] for part in "qkv")
        assert attention.qkv.weight.shape == (rows, config.hidden_size)
        assert attention.qkv.bias.shape == (rows,)
        assert dict(attention.qkv.parts) == {part: shapes[part][0] for part in "qkv"}
        assert attention.out.weight.shape == shapes["o"]
        assert attention.out.bias is None
        assert attention.plan.scale == pytest.approx(scale, rel=1e-6)
        assert model.rope.variant(0).inverse_frequencies().shape == (1, pairs)

    def test_heads_that_cannot_be_derived(self) -> None:
        with pytest.raises(ConfigError) as caught:
            read(hidden_size=1792, num_attention_heads=24, num_key_value_heads=8)
        for part in ("hidden_size (1792)", "num_attention_heads (24)", "head_dim"):
            assert part in str(caught.value)

    def test_a_head_without_pairs_names_head_dim(self) -> None:
        with pytest.raises(ConfigError, match=r"head_dim .* rotary width of 7"):
            planned(head_dim=7)
