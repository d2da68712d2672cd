"""SmolLM3's config.json: which layers have RoPE, which slide, and what is absent."""

from typing import Any

import pytest

from fuel_core.config import RopeOptions
from fuel_core.errors import ConfigError
from fuel_core.plans import MaskPlan, ModelPlan
from fuel_llama.smollm3 import SmolLM3Config, plan

BASE: dict[str, Any] = {
    "model_type": "smollm3",
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 144,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 5e6,
    "hidden_act": "gelu",
    "tie_word_embeddings": False,
    "attention_bias": True,
    "mlp_bias": True,
    "no_rope_layers": [0, 1, 1, 0, 1, 0, 1, 1],
    "no_rope_layer_interval": 3,
    "use_sliding_window": True,
    "sliding_window": 7,
}
"""Not one value is a default, so that a default cannot pass for a value that was read."""


def planned(**changes: Any) -> ModelPlan:
    """The plan of BASE with changes; ``...`` takes a key away."""
    raw = {key: value for key, value in {**BASE, **changes}.items() if value is not ...}
    return plan(SmolLM3Config.read(raw, source="here/config.json")[0], RopeOptions())


def rotating(model: ModelPlan) -> list[int]:
    return [layer for layer in range(8) if model.rope.variant(layer) is not None]


def sliding(model: ModelPlan) -> list[int]:
    return [layer for layer in range(8) if model.mask.window(layer) is not None]


class TestWhichLayersRotate:
    def test_one_is_a_layer_with_rope(self) -> None:
        """The key's name says the opposite."""
        assert rotating(planned()) == [1, 2, 4, 6, 7]

    @pytest.mark.parametrize("stated", [..., None], ids=["absent", "null"])
    def test_absent_every_third_or_fourth_has_none(self, stated: Any) -> None:
        assert rotating(planned(no_rope_layers=stated)) == [0, 1, 3, 4, 6, 7]
        published = planned(no_rope_layers=stated, no_rope_layer_interval=...)
        assert rotating(published) == [0, 1, 2, 4, 5, 6]

    def test_an_interval_of_one_leaves_no_layer_with_rope(self) -> None:
        model = planned(no_rope_layers=..., no_rope_layer_interval=1)
        assert (model.rope.variants, rotating(model)) == ((), [])

    @pytest.mark.parametrize("stated", [[1] * 7, [1] * 9, []], ids=len)
    def test_it_must_cover_the_layers(self, stated: list[int]) -> None:
        with pytest.raises(ConfigError, match=f"no_rope_layers states {len(stated)} layers, .* is 8"):
            planned(no_rope_layers=stated)

    @pytest.mark.parametrize("wrong", [2, -1, True, 1.0, "1", None])
    def test_nothing_but_zero_and_one(self, wrong: Any) -> None:
        with pytest.raises(ConfigError, match="no_rope_layers"):
            planned(no_rope_layers=[*[1] * 7, wrong])

    @pytest.mark.parametrize("wrong", [0, -4, None, 4.0])
    def test_no_interval(self, wrong: Any) -> None:
        with pytest.raises(ConfigError, match="no_rope_layer_interval"):
            planned(no_rope_layers=..., no_rope_layer_interval=wrong)


class TestWhichLayersSlide:
    def test_those_without_rope(self) -> None:
        model = planned()
        assert sliding(model) == [0, 3, 5]
        assert set(model.mask.windows) == {7, None}
        assert model.notes == ()

    def test_those_of_the_interval(self) -> None:
        assert sliding(planned(no_rope_layers=...)) == [2, 5]

    def test_none_where_every_layer_has_rope(self) -> None:
        assert planned(no_rope_layers=[1] * 8).mask == MaskPlan.dense(8)

    def test_the_switch_off(self) -> None:
        """As the published model states it."""
        model = planned(use_sliding_window=False, sliding_window=None)
        assert (model.mask, model.notes) == (MaskPlan.dense(8), ())
        assert (planned(use_sliding_window=False).mask, model.notes) == (MaskPlan.dense(8), ())

    def test_a_width_without_the_switch_slides_nothing_and_says_so(self) -> None:
        model = planned(use_sliding_window=...)
        assert model.mask == MaskPlan.dense(8)
        assert "sliding_window is 7, but use_sliding_window is absent" in model.notes[0]

    @pytest.mark.parametrize("width", [..., None, 0], ids=["absent", "null", "zero"])
    def test_the_switch_without_a_width_slides_nothing_and_says_so(self, width: Any) -> None:
        model = planned(sliding_window=width)
        assert model.mask == MaskPlan.dense(8)
        assert "use_sliding_window is true, but sliding_window is" in model.notes[0]

    def test_layer_types_win(self) -> None:
        """transformers 5 saves them with every file."""
        kinds = ["sliding_attention", *["full_attention"] * 6, "sliding_attention"]
        model = planned(layer_types=kinds)
        assert (sliding(model), rotating(model)) == ([0, 7], [1, 2, 4, 6, 7])
        assert model.notes == ()
        off = planned(layer_types=kinds, use_sliding_window=False)
        assert sliding(off) == [0, 7]
        assert "use_sliding_window is not true" in off.notes[0]

    def test_full_layer_types_with_the_switch_off(self) -> None:
        kinds = ["full_attention"] * 8
        saved = planned(layer_types=kinds, use_sliding_window=False, sliding_window=None)
        assert (saved.mask, saved.notes) == (MaskPlan.dense(8), ())

    @pytest.mark.parametrize(
        ("changes", "named"),
        [
            ({"layer_types": ["full_attention"] * 7}, "layer_types states 7 layers"),
            ({"layer_types": ["linear_attention"] * 8}, r"layer_types\[0\]"),
            ({"layer_types": ["sliding_attention"] * 8, "sliding_window": None}, "sliding_window is None"),
            ({"sliding_window": -1}, "sliding_window is -1"),
        ],
        ids=["count", "type", "no width", "width"],
    )
    def test_nonsense_names_its_key(self, changes: dict[str, Any], named: str) -> None:
        with pytest.raises(ConfigError, match=named):
            planned(**changes)


class TestValues:
    def test_each_value_of_the_file_arrives(self) -> None:
        model = planned()
        assert (model.family, model.vocab_size, model.hidden_size) == ("smollm3", 96, 64)
        assert (model.norm.eps, model.tied, len(model.layers)) == (1e-5, False, 8)
        assert str(model.layers[7].mixer) == "attention 8q/2kv x 8, bias qkv+out"
        assert str(model.layers[7].feed_forward) == "gated mlp 144, gelu, biased"
        assert model.rope.variant(7).base == 5e6

    def test_absent_keys(self) -> None:
        """Tied, four key/value heads and a base of two million: not one of them is Llama's."""
        absent = ("num_key_value_heads", "rms_norm_eps", "rope_theta", "hidden_act", "tie_word_embeddings")
        model = planned(**dict.fromkeys((*absent, "attention_bias", "mlp_bias"), ...))
        assert (model.norm.eps, model.rope.variant(1).base, model.tied) == (1e-6, 2e6, True)
        assert str(model.layers[0].mixer) == "attention 8q/4kv x 8, bias none"
        assert str(model.layers[0].feed_forward) == "gated mlp 144, silu"

    def test_null_key_value_heads_are_all_heads(self) -> None:
        assert planned(num_key_value_heads=None).layers[0].mixer.kv_heads == 8

    def test_what_published_files_add_changes_nothing(self) -> None:
        assert planned(pretraining_tp=2, max_window_layers=28) == planned()
