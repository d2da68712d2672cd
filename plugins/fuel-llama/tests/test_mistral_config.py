"""Mistral's config.json: its window, its heads, and the keys that it does not have."""

from typing import Any

import pytest
import torch

from fuel_core.config import RopeOptions
from fuel_core.errors import ConfigError
from fuel_core.plans import MaskPlan, ModelPlan
from fuel_core.testing import Case
from fuel_core.testing.checks import EXACT, assert_close, gap
from fuel_llama.mistral import MISTRAL, MistralConfig, build, plan

BASE: dict[str, Any] = {
    "model_type": "mistral",
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 144,
    "num_hidden_layers": 3,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e6,
    "hidden_act": "gelu",
    "tie_word_embeddings": True,
    "sliding_window": 512,
}
"""Not one value is a default, so that a default cannot pass for a value that was read."""


def read(**changes: Any) -> MistralConfig:
    """BASE with changes; ``...`` takes a key away."""
    raw = {key: value for key, value in {**BASE, **changes}.items() if value is not ...}
    return MistralConfig.read(raw, source="here/config.json")[0]


def planned(**changes: Any) -> ModelPlan:
    return plan(read(**changes), RopeOptions())


class TestWindow:
    @pytest.mark.parametrize(
        ("stated", "window"),
        [(..., 4096), (None, None), (0, None), (512, 512), (1, 1)],
        ids=["absent", "null", "zero", "stated", "one"],
    )
    def test_absent_null_and_a_width_are_three_models(self, stated: Any, window: int | None) -> None:
        """v0.1 slides over 4,096 tokens, v0.2 and later state a null and do not."""
        model = planned(sliding_window=stated)
        assert model.mask == MaskPlan((window,), (0,) * 3)
        assert model.position_limit == 256, "a window shortens no context"
        assert model.notes == ()

    def test_it_counts_the_query(self) -> None:
        """Kernels that count the keys to the left saw W + 1. Four keys of eight, by a mask from outside,
        which replaces the window: lowest key 0 0 0 0 1 2 3 4, counts 1 2 3 4 4 4 4 4."""
        case = Case.build(MISTRAL, "window", raw={**MISTRAL.tiny["window"], "sliding_window": 4})
        tokens = case.token_ids(seed=1, count=8)
        lowest, counts = [0, 0, 0, 0, 1, 2, 3, 4], [1, 2, 3, 4, 4, 4, 4, 4]
        seen = [range(first, first + count) for first, count in zip(lowest, counts, strict=True)]

        def masked(seen: list[range]) -> torch.Tensor:
            mask = torch.tensor([[key in keys for key in range(8)] for keys in seen])
            with torch.no_grad():
                logits: torch.Tensor = case.decoder(torch.tensor([tokens]), mask=mask)[0]
            return logits

        wanted = masked(seen)
        assert_close(case.one_shot(tokens), wanted, EXACT, "one shot")
        decoded = case.decode(case.session(), tokens, prefilled=3)
        assert_close(decoded, wanted, EXACT, "token by token")
        wider = masked([range(max(0, keys.start - 1), keys.stop) for keys in seen])
        assert gap(wanted[4:], wider[4:]) > 1e-3, "vacuous: a key more changes nothing"

    def test_of_the_whole_sequence_it_is_none(self) -> None:
        raw = MISTRAL.tiny["window"]
        wide, none = (
            Case.build(MISTRAL, "window", raw={**raw, "sliding_window": window}) for window in (8, None)
        )
        tokens = wide.token_ids(seed=1, count=8)
        assert_close(wide.one_shot(tokens), none.one_shot(tokens), EXACT, "a window of 8 over 8 tokens")

    @pytest.mark.parametrize("width", [-1, 2.0, "4096", True])
    def test_no_width(self, width: Any) -> None:
        with pytest.raises(ConfigError, match="sliding_window is "):
            planned(sliding_window=width)

    def test_layer_types_are_another_architecture(self) -> None:
        """transformers loads such a file as Ministral; nothing here reads the key, so it is refused."""
        with pytest.raises(ConfigError, match="layer_types: nothing in fuel or this family reads it"):
            planned(layer_types=["sliding_attention"] * 3)


class TestHeads:
    @pytest.mark.parametrize(("stated", "heads"), [(..., 8), (None, 16), (2, 2), (1, 1)])
    def test_absent_and_null_differ(self, stated: Any, heads: int) -> None:
        """Absent, the published number; null, as many as query heads."""
        assert planned(num_key_value_heads=stated).layers[0].mixer.kv_heads == heads

    def test_eight_must_divide(self) -> None:
        with pytest.raises(ConfigError, match=r"num_attention_heads \(4\).*num_key_value_heads \(8\)"):
            planned(num_attention_heads=4, num_key_value_heads=...)

    def test_missing_query_heads_are_named(self) -> None:
        with pytest.raises(ConfigError, match="num_attention_heads is missing"):
            planned(num_attention_heads=..., num_key_value_heads=None)

    def test_of_nemo(self) -> None:
        """Its heads are narrower than hidden_size / heads: 160 in place of 128 made a table or a weight
        of another size, or a softmax scale of 0.0790569."""
        config = read(
            hidden_size=5120,
            num_attention_heads=32,
            num_key_value_heads=8,
            head_dim=128,
            num_hidden_layers=1,
        )
        model = plan(config, RopeOptions())
        with torch.device("meta"):
            attention = build(config, model).layers[0].mixer
        assert dict(attention.qkv.parts) == {"q": 4096, "k": 1024, "v": 1024}
        assert attention.qkv.weight.shape == (6144, 5120)
        assert attention.out.weight.shape == (5120, 4096)
        assert attention.plan.scale == pytest.approx(0.0883883, rel=1e-6)
        assert model.rope.variant(0).inverse_frequencies().shape == (1, 64)


class TestValues:
    def test_each_value_of_the_file_arrives(self) -> None:
        model = planned()
        assert (model.family, model.vocab_size, model.hidden_size) == ("mistral", 96, 64)
        assert (model.norm.eps, model.tied, len(model.layers)) == (1e-5, True, 3)
        assert str(model.layers[2].mixer) == "attention 16q/2kv x 4, bias none"
        assert str(model.layers[2].feed_forward) == "gated mlp 144, gelu"
        assert model.rope.variant(2).base == 1e6

    def test_absent_keys(self) -> None:
        absent = ("rms_norm_eps", "rope_theta", "hidden_act", "tie_word_embeddings")
        model = planned(**dict.fromkeys(absent, ...))
        assert (model.norm.eps, model.rope.variant(0).base, model.tied) == (1e-6, 1e4, False)
        assert str(model.layers[0].feed_forward) == "gated mlp 144, silu"

    @pytest.mark.parametrize("key", ["attention_bias", "mlp_bias"])
    def test_there_are_no_biases(self, key: str) -> None:
        """transformers passes over the key and the stored biases."""
        assert planned(**{key: False}) == planned()
        with pytest.raises(ConfigError, match=f"{key}: it is True"):
            planned(**{key: True})
