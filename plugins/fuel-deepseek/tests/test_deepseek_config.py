"""DeepSeek's config.json files: geometry, routing, which layers have experts, what is absent."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fuel_core.errors import ConfigError
from fuel_core.family import Family
from fuel_core.inspection.plan_report import read_report
from fuel_core.plans import GatedMLPPlan, LatentAttentionPlan, LatentSlots, ModelPlan, MoEPlan, RouterPlan
from fuel_core.registry import Registry
from fuel_deepseek.architecture import DeepSeekOptions
from fuel_deepseek.deepseek_v2 import DEEPSEEK_V2
from fuel_deepseek.deepseek_v3 import DEEPSEEK_V3

FIXTURES = Path(__file__).parents[3] / "tests" / "fixtures" / "configs"


def published(name: str) -> dict[str, Any]:
    raw: dict[str, Any] = json.loads((FIXTURES / f"{name}.json").read_text())
    return raw


V2, V2_LITE, V3 = published("deepseek-v2"), published("deepseek-v2-lite"), published("deepseek-v3")
FAMILIES = {"deepseek_v2": DEEPSEEK_V2, "deepseek_v3": DEEPSEEK_V3}


def planned(base: dict[str, Any], options: DeepSeekOptions | None = None, **changes: Any) -> ModelPlan:
    """The plan of a config with changes; ``...`` takes a key away."""
    raw = {key: value for key, value in {**base, **changes}.items() if value is not ...}
    family: Family = FAMILIES[raw["model_type"]]
    config, _ = family.config.read(raw, source="config.json")
    return family.plan(config, options or family.options())


def mixer(plan: ModelPlan) -> LatentAttentionPlan:
    (only,) = {layer.mixer for layer in plan.layers}
    assert isinstance(only, LatentAttentionPlan)
    return only


def sparse_layers(plan: ModelPlan) -> list[int]:
    return [i for i, layer in enumerate(plan.layers) if isinstance(layer.feed_forward, MoEPlan)]


def experts(plan: ModelPlan) -> MoEPlan:
    (only,) = {layer.feed_forward for layer in plan.layers if isinstance(layer.feed_forward, MoEPlan)}
    return only


def router(plan: ModelPlan) -> RouterPlan:
    recipe = experts(plan).router
    assert isinstance(recipe, RouterPlan)
    return recipe


class TestPublished:
    def test_v2_lite(self) -> None:
        plan = planned(V2_LITE)
        attention = mixer(plan)
        assert (attention.heads, attention.q_rank, attention.kv_rank) == (16, None, 512)
        assert (attention.nope_dim, attention.rope_dim, attention.value_dim) == (128, 64, 128)
        assert sparse_layers(plan) == list(range(1, 27))
        assert plan.layers[0].feed_forward == GatedMLPPlan(width=10_944, activation="silu")
        assert str(experts(plan)) == "moe 6 of 64, softmax, experts 1408 silu, shared 2816"
        assert plan.cache.layers == (LatentSlots(512, 64),) * 27
        assert plan.cache.bytes_per_token(2) == 31_104
        assert plan.position_limit == 163_840
        assert plan.notes == ()

    def test_v2(self) -> None:
        plan = planned(V2)
        assert (mixer(plan).heads, mixer(plan).q_rank, len(plan.layers)) == (128, 1536, 60)
        assert str(router(plan)) == "6 of 160, softmax, groups 3 of 8 by max, scale 16"
        assert sparse_layers(plan) == list(range(1, 60))

    def test_v3(self) -> None:
        plan = planned(V3)
        assert (mixer(plan).heads, mixer(plan).q_rank, len(plan.layers)) == (128, 1536, 61)
        assert str(router(plan)) == (
            "8 of 256, sigmoid, correction bias, groups 4 of 8 by top2, normalised, scale 2.5"
        )
        assert sparse_layers(plan) == list(range(3, 61))
        assert experts(plan).shared == GatedMLPPlan(width=2048, activation="silu")
        assert plan.cache.bytes_per_token(2) == 70_272
        (note,) = plan.notes
        assert "8-bit floats in blocks of 128 x 128" in note


def test_a_plan_reports_what_latents_save() -> None:
    """V2-Lite's 16 heads of 192-dimensional keys and 128-dimensional values would take 276,480 bytes."""
    report = read_report(Registry.discover(), str(FIXTURES / "deepseek-v2-lite.json"))
    assert (report.cache["bytes_per_token"], report.cache["expanded_bytes_per_token"]) == (31_104, 276_480)


class TestTwoCorrectionsOfYarn:
    """Position 0 sees one key and hides a wrong scale; later positions drift."""

    @pytest.mark.parametrize(
        ("base", "changes", "magnitude", "scale"),
        [
            (V3, {}, 1.0, 0.135233779),
            (V2_LITE, {}, 1.0, 0.114721387),
            (V3, {"mscale_all_dim": ...}, 1.36888795, 0.0721687836),
            (V3, {"mscale": ...}, 1.0, 0.135233779),
            (V2_LITE, {"mscale": ...}, 1.36888795 / 1.26080378, 0.114721387),
        ],
        ids=["V3", "V2-Lite", "mscale alone", "mscale_all_dim alone", "V2-Lite, mscale_all_dim alone"],
    )
    def test_magnitude_and_scale(
        self, base: dict[str, Any], changes: dict[str, Any], magnitude: float, scale: float
    ) -> None:
        """With one key alone transformers gives another magnitude than DeepSeek's own code; a missing
        mscale is 1 and a missing mscale_all_dim is 0."""
        recipe = {
            key: value for key, value in {**base["rope_scaling"], **changes}.items() if value is not ...
        }
        plan = planned(base, rope_scaling=recipe)
        assert plan.rope.variant(0).scaling.magnitudes == pytest.approx((magnitude,), rel=1e-6)
        assert mixer(plan).scale == pytest.approx(scale, rel=1e-6)

    def test_frequencies(self) -> None:
        (table,) = planned(V3).rope.variant(0).inverse_frequencies()
        for pair, wanted in {10: 0.0562341, 16: 0.0055, 23: 3.33380e-05, 31: 3.33380e-06}.items():
            assert float(table[pair]) == pytest.approx(wanted, rel=1e-5)

    def test_without_a_recipe_the_scale_is_that_of_a_query_head(self) -> None:
        """Never of a cache entry: 576 dimensions would give 0.0417."""
        assert mixer(planned(V2_LITE, rope_scaling=None)).scale == pytest.approx(192**-0.5)


class TestWhichLayersHaveExperts:
    @pytest.mark.parametrize(
        ("first", "every", "wanted"),
        [(1, 1, [1, 2, 3, 4, 5, 6]), (1, 2, [2, 4, 6]), (3, 2, [4, 6]), (0, 3, [0, 3, 6]), (7, 1, [])],
    )
    def test_counted_from_the_first_layer(self, first: int, every: int, wanted: list[int]) -> None:
        """``i % moe_layer_freq``, as published: not counted from the first layer that may have experts."""
        plan = planned(V2_LITE, num_hidden_layers=7, first_k_dense_replace=first, moe_layer_freq=every)
        assert sparse_layers(plan) == wanted

    @pytest.mark.parametrize("count", [None, 0, ...])
    def test_no_routed_experts_is_dense(self, count: Any) -> None:
        plan = planned(V2_LITE, n_routed_experts=count, num_experts_per_tok=None, moe_intermediate_size=...)
        assert sparse_layers(plan) == []

    @pytest.mark.parametrize("count", [None, 0, ...])
    def test_no_shared_experts_is_no_branch(self, count: Any) -> None:
        plan = planned(V2_LITE, n_shared_experts=count, num_hidden_layers=2)
        assert experts(plan).shared is None
        config, _ = DEEPSEEK_V2.config.read(
            {key: value for key, value in {**V2_LITE, "n_shared_experts": count}.items() if value is not ...},
            source="config.json",
        )
        with torch.device("meta"):
            decoder = DEEPSEEK_V2.build(config, plan)
        assert decoder.layers[1].feed_forward.shared is None

    def test_experts_need_a_width_and_a_choice(self) -> None:
        for key in ("num_experts_per_tok", "moe_intermediate_size"):
            with pytest.raises(ConfigError, match=f"n_routed_experts is 64 and {key} is not stated"):
                planned(V2_LITE, **{key: None})


class TestRouting:
    def test_what_v2_normalises_it_does_not_scale(self) -> None:
        """As its published code does; transformers reads the key and passes it over."""
        assert (router(planned(V2)).normalise, router(planned(V2)).scale) == (False, 16.0)
        both = router(planned(V2, norm_topk_prob=True))
        assert (both.normalise, both.scale) == (True, 1.0)
        alone = router(planned(V2, norm_topk_prob=True, num_experts_per_tok=1))
        assert (alone.normalise, alone.scale) == (False, 16.0)

    def test_v3_does_both(self) -> None:
        recipe = router(planned(V3))
        assert (recipe.normalise, recipe.scale) == (True, 2.5)
        assert router(planned(V3, norm_topk_prob=False)).scale == 2.5

    def test_greedy_knows_no_groups(self) -> None:
        assert router(planned(V2, topk_method="greedy")).limited is False

    def test_absent_keys_of_v3_are_its_own(self) -> None:
        keys = (
            "first_k_dense_replace", "moe_intermediate_size", "n_group", "n_routed_experts",
            "n_shared_experts", "norm_topk_prob", "num_experts_per_tok", "routed_scaling_factor",
            "scoring_func", "topk_group", "topk_method",
        )  # fmt: skip
        bare = planned(V3, **dict.fromkeys(keys, ...))
        assert bare == planned(V3)

    @pytest.mark.parametrize(
        ("base", "changes", "named"),
        [
            (V3, {"topk_method": "greedy"}, "topk_method is 'greedy'"),
            (V3, {"scoring_func": "softmax"}, "scoring_func is 'softmax'"),
            (V2, {"topk_method": "noaux_tc"}, "topk_method is 'noaux_tc'"),
            (V2, {"num_experts_per_tok": 61}, r"num_experts_per_tok \(61\).*3 group\(s\) of 20 hold only 60"),
            (V2, {"n_group": 7}, r"n_group \(7\).*160 experts do not divide"),
            (V3, {"topk_group": 9}, r"topk_group \(9\)"),
            (V2, {"n_group": None}, "n_group is None, topk_group 3; state both"),
            (V3, {"topk_group": None}, "n_group is 8, topk_group None; state both"),
        ],
    )
    def test_nonsense_names_its_key(self, base: dict[str, Any], changes: dict[str, Any], named: str) -> None:
        with pytest.raises(ConfigError, match=named):
            planned(base, **changes)


class TestWhereTransformersDiffers:
    """Fluent, other text is the worst that can happen: a load says which reading it took."""

    @pytest.mark.parametrize(
        ("base", "changes", "words"),
        [
            (V2, {"norm_topk_prob": True}, "normalised and not multiplied by routed_scaling_factor"),
            (V2_LITE, {"moe_layer_freq": 2}, "from 1 on those that it divides have experts"),
            (
                V2_LITE,
                {"rope_scaling": {"type": "yarn", "factor": 40, "mscale_all_dim": 0.707,
                                  "original_max_position_embeddings": 4096}},
                "mscale_all_dim alone: cos and sin are multiplied by 1.08573",
            ),
        ],
        ids=["normalised", "every other layer", "one mscale"],
    )  # fmt: skip
    def test_a_note_names_both(self, base: dict[str, Any], changes: dict[str, Any], words: str) -> None:
        (note,) = planned(base, **changes).notes
        assert words in note
        assert "transformers would" in note

    def test_published_files_are_read_alike(self) -> None:
        assert planned(V2).notes == planned(V2_LITE).notes == ()
        assert planned(V2_LITE, norm_topk_prob=True, num_experts_per_tok=1).notes == ()


class TestAttentionKeys:
    def test_a_null_query_rank_and_an_absent_one_are_two_models(self) -> None:
        assert mixer(planned(V2_LITE, q_lora_rank=None)).q_rank is None
        assert mixer(planned(V2_LITE, q_lora_rank=0)).q_rank is None
        assert mixer(planned(V2_LITE, q_lora_rank=...)).q_rank == 1536

    @pytest.mark.parametrize("key", ["kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"])
    def test_sizes_are_never_guessed(self, key: str) -> None:
        with pytest.raises(ConfigError, match=f"{key} is missing"):
            planned(V2_LITE, **{key: ...})

    def test_what_transformers_writes_is_checked(self) -> None:
        """Its ``head_dim`` is the rotated part, and no size of a head."""
        assert planned(V3, head_dim=64, qk_head_dim=192) == planned(V3)
        with pytest.raises(ConfigError, match=r"head_dim \(192\) is not qk_rope_head_dim \(64\)"):
            planned(V3, head_dim=192)
        with pytest.raises(ConfigError, match=r"qk_head_dim \(64\) is not qk_nope_head_dim \(128\) \+"):
            planned(V3, qk_head_dim=64)

    def test_heads_share_no_key(self) -> None:
        with pytest.raises(ConfigError, match=r"num_key_value_heads \(4\) is not num_attention_heads \(16\)"):
            planned(V2_LITE, num_key_value_heads=4)
        assert planned(V2_LITE, num_key_value_heads=...) == planned(V2_LITE)

    def test_latents_are_normalised_as_they_were_trained(self) -> None:
        assert mixer(planned(V2_LITE, rms_norm_eps=1e-3)).norm.eps == 1e-6

    def test_pairs_of_v3_by_choice(self) -> None:
        assert planned(V3).rope.variant(0).layout == "interleaved"
        assert planned(V3, rope_interleave=False).rope.variant(0).layout == "half"

    @pytest.mark.parametrize("form", ["absorbed", "expanded"])
    def test_a_user_may_choose_the_form(self, form: Any) -> None:
        assert mixer(planned(V2_LITE, DeepSeekOptions(mla=form))).form == form
