"""Qwen2's config.json: which layers slide, what is absent, what the plan and the parts make of it."""

from typing import Any

import pytest
import torch

from fuel_core.errors import ConfigError
from fuel_core.plans import AttentionPlan, KVSlots, MaskPlan, ModelPlan
from fuel_qwen.qwen2 import Qwen2Config, Qwen2Options, build, plan

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


def planned(options: Qwen2Options | None = None, **changes: Any) -> ModelPlan:
    return plan(read(**changes), options or Qwen2Options())


def sliding(model: ModelPlan) -> list[int]:
    return [layer for layer in range(model.mask.layers) if model.mask.window(layer) is not None]


def windows(model: ModelPlan) -> set[int | None]:
    return set(model.mask.windows)


class TestWhichLayersSlide:
    """Qwen's documentation and this family: the first ``max_window_layers``; transformers: the others."""

    def test_the_first_layers_do(self) -> None:
        model = planned(use_sliding_window=True, sliding_window=500, max_window_layers=28)
        assert sliding(model) == list(range(28))
        assert windows(model) == {500, None}
        (note,) = model.notes
        assert "0-27 slide" in note
        assert "transformers would let 28-35 slide" in note
        assert "window_layers" in note

    def test_all_layers_may(self) -> None:
        model = planned(use_sliding_window=True, sliding_window=500, max_window_layers=36)
        assert model.mask == MaskPlan((500,), (0,) * 36)
        (note,) = model.notes
        assert "0-35 slide; transformers would let none slide" in note

    def test_a_width_alone_slides_nothing_and_says_so(self) -> None:
        """Files with a sliding_window and no switch silently got no window; that is right, and worth
        a word. The cache must not be cut to the window either."""
        model = planned(sliding_window=2048)
        assert model.mask == MaskPlan.dense(36)
        assert model.position_limit == 256
        (note,) = model.notes
        assert "sliding_window is 2048, but use_sliding_window is absent" in note

    def test_the_switch_off_slides_nothing_without_a_word(self) -> None:
        """As every published Qwen2 and Qwen2.5 states it."""
        model = planned(use_sliding_window=False, sliding_window=131_072, max_window_layers=28)
        assert model.mask == MaskPlan.dense(36)
        assert model.notes == ()

    def test_layer_types_win(self) -> None:
        kinds = ["full_attention"] * 30 + ["sliding_attention"] * 6
        model = planned(use_sliding_window=True, sliding_window=500, max_window_layers=28, layer_types=kinds)
        assert sliding(model) == list(range(30, 36))
        assert model.notes == ()

    def test_an_absent_max_window_layers_is_every_layer(self) -> None:
        model = planned(num_hidden_layers=5, use_sliding_window=True, sliding_window=16)
        assert model.mask == MaskPlan((16,), (0,) * 5)
        (note,) = model.notes
        assert "0-4 slide; transformers would let none slide" in note
        null = planned(
            num_hidden_layers=5, use_sliding_window=True, sliding_window=16, max_window_layers=None
        )
        assert (null, null.notes) == (model, model.notes)

    def test_no_layer_slides_below_zero_of_them(self) -> None:
        model = planned(use_sliding_window=True, sliding_window=16, max_window_layers=0)
        assert model.mask == MaskPlan.dense(36)
        assert "none slide; transformers would let 0-35 slide" in model.notes[0]

    def test_an_option_takes_transformers_reading(self) -> None:
        last = Qwen2Options(window_layers="last")
        model = planned(last, use_sliding_window=True, sliding_window=500, max_window_layers=28)
        assert sliding(model) == list(range(28, 36))
        assert model.notes == ()

    @pytest.mark.parametrize("width", [None, 0])
    def test_no_width_is_no_window(self, width: int | None) -> None:
        """A note said that layers 0-27 slide while none did."""
        model = planned(use_sliding_window=True, sliding_window=width, max_window_layers=28)
        assert model.mask == MaskPlan.dense(36)
        assert model.notes == ()

    def test_an_absent_width_is_the_whole_context_and_says_so(self) -> None:
        model = planned(use_sliding_window=True, max_window_layers=36)
        assert windows(model) == {256}
        assert any("the whole context, 256 tokens" in note and "4096" in note for note in model.notes)

    def test_layer_types_against_the_switch(self) -> None:
        kinds = ["sliding_attention"] * 36
        model = planned(use_sliding_window=False, sliding_window=500, layer_types=kinds)
        assert sliding(model) == list(range(36))
        (note,) = model.notes
        assert "use_sliding_window is false" in note

    def test_layer_types_must_cover_the_layers(self) -> None:
        with pytest.raises(ConfigError, match="layer_types names 2 layers, num_hidden_layers is 36"):
            planned(layer_types=["full_attention"] * 2)

    @pytest.mark.parametrize(
        ("changes", "named"),
        [
            ({"layer_types": ["full_attention"] * 35 + ["linear_attention"]}, r"layer_types\[35\]"),
            ({"layer_types": ["sliding_attention"] * 36, "sliding_window": None}, "sliding_window is None"),
            ({"layer_types": "full_attention"}, "layer_types is 'full_attention'"),
            ({"sliding_window": -1}, "sliding_window is -1"),
            ({"max_window_layers": -1}, "max_window_layers is -1"),
            ({"use_sliding_window": None}, "use_sliding_window is None"),
            ({"use_mrope": True}, "use_mrope"),
        ],
        ids=["type", "no width", "no list", "width", "count", "switch", "mrope"],
    )
    def test_nonsense_names_its_key(self, changes: dict[str, Any], named: str) -> None:
        with pytest.raises(ConfigError, match=named):
            planned(**changes)


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
        model = plan(config, Qwen2Options())
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
        theirs = planned(Qwen2Options(absent_rope_theta=1e4), rope_theta=...)
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
        model = plan(config, Qwen2Options())
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
