"""RoPE keys: four spellings of one model, the order among them, and what is refused."""

from typing import Any

import pytest
import torch

from fuel_core.config import DynamicNTK, RopeKeys, RopeOptions, RopeSpelling
from fuel_core.errors import ConfigError
from fuel_core.plans import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    NoScaling,
    RopeVariant,
    YarnScaling,
)

WIDTH = 8
BLOCK: dict[str, Any] = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
LONGROPE: dict[str, Any] = {
    "type": "longrope",
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [2, 3, 4, 5],
}


def spell(
    *,
    original_length: int | None = None,
    width: int = WIDTH,
    dynamic_ntk: DynamicNTK = "refused",
    **keys: Any,
) -> RopeSpelling:
    raw = {
        "vocab_size": 8,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "max_position_embeddings": 131_072,
        **keys,
    }
    config, _ = RopeKeys.read(raw, source="here/config.json")
    return config.rope_spelling(
        default_theta=10_000.0, width=width, original_length=original_length, dynamic_ntk=dynamic_ntk
    )


def refusal(**keys: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        spell(**keys)
    return str(caught.value)


class TestSpellings:
    LLAMA = RopeVariant(
        base=500_000.0,
        width=WIDTH,
        scaling=Llama3Scaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_length=8192),
    )

    @pytest.mark.parametrize(
        "keys",
        [
            {"rope_theta": 500_000.0, "rope_scaling": {"rope_type": "llama3", **BLOCK}},
            {"rope_theta": 500_000.0, "rope_scaling": {"type": "llama3", **BLOCK}},
            {"rope_theta": 500_000, "rope_scaling": {"type": "llama3", "rope_type": "llama3", **BLOCK}},
            {"rope_parameters": {"rope_theta": 500_000.0, "rope_type": "llama3", **BLOCK}},
            {"rope_scaling": {"rope_theta": 500_000.0, "rope_type": "llama3", **BLOCK}},
            {
                "rope_parameters": {"rope_theta": 500_000.0, "rope_type": "llama3", **BLOCK},
                "rope_scaling": {"rope_theta": 500_000.0, "type": "llama3", **BLOCK},
            },
        ],
        ids=["rope_type", "type", "both types", "v5", "base inside", "both dicts"],
    )
    def test_one_model_spelt_in_every_way(self, keys: dict[str, Any]) -> None:
        """One spelling was read and the others ignored, so the model ran with another base, or unscaled."""
        spelling = spell(**keys)
        assert spelling.single == self.LLAMA
        assert torch.equal(spelling.single.inverse_frequencies(), self.LLAMA.inverse_frequencies())
        assert spelling.theta_stated
        assert spelling.notes == ()

    def test_a_base_inside_beats_the_top_level_and_says_so(self) -> None:
        """A stale top-level default beat the trained base inside rope_parameters."""
        spelling = spell(rope_theta=10_000.0, rope_parameters={"rope_type": "default", "rope_theta": 5e5})
        assert spelling.single.base == 500_000.0
        (note,) = spelling.notes
        assert "10000.0" in note
        assert "500000.0" in note
        assert "rope_parameters" in note

    def test_the_top_level_beats_the_familys_default(self) -> None:
        assert spell(rope_theta=5e5, rope_scaling={"type": "linear", "factor": 2.0}).single.base == 5e5

    @pytest.mark.parametrize(
        "keys",
        [
            {},
            {"rope_scaling": None},
            {"rope_theta": None, "rope_parameters": None},
            {"rope_scaling": {}},
            {"rope_scaling": {"rope_type": "default"}},
            {"rope_scaling": {"type": "default", "rope_theta": None}},
        ],
        ids=str,
    )
    def test_nothing_stated_is_the_familys_default_unscaled(self, keys: dict[str, Any]) -> None:
        spelling = spell(**keys)
        assert spelling.single == RopeVariant(base=10_000.0, width=WIDTH)
        assert not spelling.theta_stated

    def test_layer_types_each_with_a_recipe(self) -> None:
        spelling = spell(
            rope_parameters={
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            }
        )
        assert spelling.variants == {
            "sliding_attention": RopeVariant(base=1e4, width=WIDTH),
            "full_attention": RopeVariant(base=1e6, width=WIDTH, scaling=LinearScaling(factor=8.0)),
        }

    @pytest.mark.parametrize("key", ["rope_parameters", "rope_scaling"])
    def test_a_family_of_one_recipe_refuses_several(self, key: str) -> None:
        spelling = spell(**{key: {"full_attention": {"rope_type": "default"}}})
        with pytest.raises(ConfigError, match=rf"{key} states one recipe for each of full_attention"):
            _ = spelling.single

    def test_two_dicts_that_differ(self) -> None:
        message = refusal(
            rope_parameters={"rope_type": "default", "rope_theta": 5e5},
            rope_scaling={"type": "linear", "factor": 2.0},
        )
        assert "rope_parameters" in message
        assert "rope_scaling" in message

    @pytest.mark.parametrize(
        "value", [{"rope_type": "default", "full_attention": {}}, {"": {"rope_type": "default"}}], ids=str
    )
    def test_a_mix_of_one_recipe_and_several(self, value: dict[str, Any]) -> None:
        """The empty name stands for "all layers" inside; a file that uses it must not mean that."""
        assert "rope_parameters mixes" in refusal(rope_parameters=value)


class TestKinds:
    @pytest.mark.parametrize(
        ("recipe", "scaling"),
        [
            ({"type": "linear", "factor": 2}, LinearScaling(factor=2.0)),
            (
                {"type": "dynamic", "factor": 2.0},
                DynamicScaling(factor=2.0, original_length=131_072),
            ),
            (
                {"type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 2048},
                DynamicScaling(factor=2.0, original_length=2048),
            ),
            (
                {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768},
                YarnScaling(factor=4.0, original_length=32_768),
            ),
            (
                {
                    "type": "yarn",
                    "factor": 40,
                    "original_max_position_embeddings": 4096,
                    "beta_fast": 32,
                    "beta_slow": 1,
                    "mscale": 0.707,
                    "mscale_all_dim": 0.707,
                },
                YarnScaling(factor=40.0, original_length=4096, mscale=0.707, mscale_all_dim=0.707),
            ),
            (
                {
                    "type": "yarn",
                    "factor": None,
                    "original_max_position_embeddings": 4096,
                    "beta_fast": 16,
                    "beta_slow": 2,
                    "mscale": 0,
                    "mscale_all_dim": 0,
                    "truncate": False,
                    "attention_factor": 1.5,
                },
                YarnScaling(
                    factor=32.0,
                    original_length=4096,
                    beta_fast=16.0,
                    beta_slow=2.0,
                    mscale=0.0,
                    mscale_all_dim=0.0,
                    truncate=False,
                    attention_factor=1.5,
                ),
            ),
            (
                {**LONGROPE, "original_max_position_embeddings": 4096},
                LongRopeScaling(
                    short_factor=(1.0, 1.1, 1.2, 1.3),
                    long_factor=(2.0, 3.0, 4.0, 5.0),
                    original_length=4096,
                    magnitude=LongRopeScaling.published_magnitude(32, 4096),
                ),
            ),
            (
                {
                    **LONGROPE,
                    "original_max_position_embeddings": 4096,
                    "attention_factor": 1.25,
                    "short_mscale": 1.1,
                    "long_mscale": 1.2,
                    "factor": 8.0,
                },
                LongRopeScaling(
                    short_factor=(1.0, 1.1, 1.2, 1.3),
                    long_factor=(2.0, 3.0, 4.0, 5.0),
                    original_length=4096,
                    magnitude=1.25,
                    short_mscale=1.1,
                    long_mscale=1.2,
                ),
            ),
            ({"type": "default"}, NoScaling()),
        ],
        ids=lambda value: value.get("type") if isinstance(value, dict) else "",
    )
    def test_each_kind_reads_its_keys(self, recipe: dict[str, Any], scaling: object) -> None:
        assert spell(rope_scaling=recipe).single.scaling == scaling

    def test_su_is_longrope(self) -> None:
        """Early Phi-3 files call it so."""
        late = spell(rope_scaling={**LONGROPE, "original_max_position_embeddings": 4096})
        early = spell(rope_scaling={**LONGROPE, "original_max_position_embeddings": 4096, "type": "su"})
        assert early.single == late.single

    def test_an_original_length_from_outside_serves_where_the_recipe_states_none(self) -> None:
        """Phi-3 states it at the top level; the recipe's own must win where there is one."""
        outside = spell(rope_scaling=LONGROPE, original_length=4096).single.scaling
        inside = spell(
            rope_scaling={**LONGROPE, "original_max_position_embeddings": 4096}, original_length=512
        ).single.scaling
        assert outside == inside
        assert outside.switch_length == 4096

    def test_the_layout_is_the_familys(self) -> None:
        raw = {"vocab_size": 8, "hidden_size": 64, "num_hidden_layers": 2, "max_position_embeddings": 16}
        config, _ = RopeKeys.read(raw, source="x")
        assert config.rope_spelling(default_theta=1e4, width=8).single.layout == "half"
        interleaved = config.rope_spelling(default_theta=1e4, width=8, layout="interleaved")
        assert interleaved.single.layout == "interleaved"


class TestDynamicNTK:
    """Every length has a base of its own by the published rule, so a user chooses: an end, or one base."""

    def scaling(self, recipe: dict[str, Any], dynamic_ntk: DynamicNTK) -> DynamicScaling:
        scaling = spell(
            dynamic_ntk=dynamic_ntk, max_position_embeddings=2048, rope_scaling=recipe
        ).single.scaling
        assert isinstance(scaling, DynamicScaling)
        return scaling

    @pytest.mark.parametrize(
        ("more", "frozen_length"),
        [
            ({"factor": 2.0}, 4096),
            ({"factor": 2.5}, 5120),
            ({"factor": 1.0}, 2048),
            ({"factor": 0.5}, 2048),
            ({"factor": 4.0, "original_max_position_embeddings": 512}, 2048),
            ({"factor": 8.0, "original_max_position_embeddings": 512}, 4096),
        ],
        ids=["twice", "and a half", "once", "less", "to the context", "beyond the context"],
    )
    def test_frozen_is_the_longest_sequence_that_the_file_speaks_of(
        self, more: dict[str, Any], frozen_length: int
    ) -> None:
        recipe = {"type": "dynamic", **more}
        assert self.scaling(recipe, "refused").frozen_length is None
        frozen = self.scaling(recipe, "frozen")
        assert (frozen.frozen_length, frozen.position_limit) == (frozen_length, frozen_length)

    def test_the_choice_is_said_once(self) -> None:
        """Both dicts of a file that states both are one recipe."""
        recipe = {"type": "dynamic", "factor": 2.0}
        both: dict[str, Any] = {"rope_scaling": recipe, "rope_parameters": recipe}
        (refused,) = spell(**both).notes
        assert "up to 131072 tokens that is plain RoPE, and more are refused" in refused
        assert "dynamic_ntk=frozen" in refused
        (frozen,) = spell(**both, dynamic_ntk="frozen").notes
        assert "frozen at the base of 262144 tokens" in frozen

    def test_it_is_a_choice_of_dynamic_recipes_alone(self) -> None:
        recipe = {"type": "yarn", "factor": 4.0}
        assert spell(rope_scaling=recipe, dynamic_ntk="frozen") == spell(rope_scaling=recipe)
        assert RopeOptions() == RopeOptions(dynamic_ntk="refused")


class TestRefusals:
    @pytest.mark.parametrize("kind", ["made_up", "Linear", "", 5, ["yarn"], True])
    def test_an_unknown_kind(self, kind: Any) -> None:
        """Fallen back to unscaled, a long prompt answers in gibberish."""
        message = refusal(rope_scaling={"rope_type": kind, "factor": 2.0})
        assert f"rope_scaling.rope_type is {kind!r}" in message
        assert "llama3" in message

    def test_two_kinds(self) -> None:
        message = refusal(rope_scaling={"rope_type": "yarn", "type": "linear", "factor": 2.0})
        for part in ("rope_scaling", "yarn", "linear"):
            assert part in message

    @pytest.mark.parametrize("recipe", [{"factor": 2.0}, {"rope_type": None, "factor": 2.0}], ids=str)
    def test_keys_without_a_kind(self, recipe: dict[str, Any]) -> None:
        assert "rope_scaling states no rope_type" in refusal(rope_scaling=recipe)

    @pytest.mark.parametrize(
        ("recipe", "missing"),
        [
            ({"type": "linear"}, "factor"),
            ({"type": "dynamic"}, "factor"),
            ({"type": "yarn"}, "factor"),
            ({"type": "llama3", "factor": 8.0, "high_freq_factor": 4.0}, "low_freq_factor"),
            ({"type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}, "high_freq_factor"),
            ({"type": "longrope", "long_factor": [1.0] * 4}, "short_factor"),
            ({"type": "longrope", "short_factor": [1.0] * 4}, "long_factor"),
        ],
        ids=lambda value: value if isinstance(value, str) else value["type"],
    )
    def test_a_missing_key(self, recipe: dict[str, Any], missing: str) -> None:
        assert missing in refusal(rope_scaling=recipe)

    @pytest.mark.parametrize(
        ("kind", "key"),
        [
            ("default", "factor"),
            ("linear", "beta_fast"),
            ("yarn", "attn_factor"),
            ("llama3", "mscale"),
            ("yarn", "made_up"),
        ],
    )
    def test_a_key_that_the_kind_does_not_have(self, kind: str, key: str) -> None:
        """attn_factor is the paper repository's name and nobody reads it: it meant something to somebody."""
        extra = BLOCK if kind == "llama3" else {"factor": 2.0} if kind != "default" else {}
        message = refusal(rope_scaling={"type": kind, **extra, key: 1.0})
        assert f"rope_scaling holds {key}" in message
        assert repr(kind) in message

    @pytest.mark.parametrize(
        "value", [0, -1.0, 0.0, True, "4", [4.0], float("nan"), float("inf"), 1e300, 1e-300, 10**400]
    )
    def test_a_number_that_makes_no_table(self, value: Any) -> None:
        """1e300 overflowed to infinity in float32, and 10**400 left as an OverflowError."""
        assert "rope_scaling.factor is " in refusal(rope_scaling={"type": "linear", "factor": value})

    @pytest.mark.parametrize("value", [-0.5, "1", True])
    def test_a_negative_mscale(self, value: Any) -> None:
        recipe = {"type": "yarn", "factor": 4.0, "mscale": value}
        assert f"rope_scaling.mscale is {value!r}" in refusal(rope_scaling=recipe)

    @pytest.mark.parametrize("value", [0, 1, -4096, 0.5, 4096.5, 4096.0, True, "4096", 2**31, 10**400])
    def test_an_original_length_that_is_no_number_of_tokens(self, value: Any) -> None:
        """4096.5 was cut to 4096, and 0.5 to 0, by which the next line divided."""
        recipe = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": value}
        message = refusal(rope_scaling=recipe)
        assert "rope_scaling: original_max_position_embeddings is " in message

    def test_a_context_of_one_token_cannot_be_stretched(self) -> None:
        message = refusal(max_position_embeddings=1, rope_scaling={**LONGROPE, "factor": 2.0})
        assert "max_position_embeddings is 1" in message

    @pytest.mark.parametrize("value", [1.0, True, [], [1.0, "2", 3.0, 4.0], [1.0, 0.0, 1.0, 1.0], [1.0] * 3])
    def test_factor_lists(self, value: Any) -> None:
        assert "short_factor" in refusal(rope_scaling={**LONGROPE, "short_factor": value})

    def test_factor_lists_of_another_width_name_where_the_width_comes_from(self) -> None:
        """The lists may be right and head_dim wrong."""
        message = refusal(rope_scaling=LONGROPE, width=16)
        for part in ("rope_scaling", "short_factor has 4 entries", "width of 16", "head_dim", "hidden_size"):
            assert part in message

    def test_a_switch(self) -> None:
        recipe = {"type": "yarn", "factor": 4.0, "truncate": 0}
        assert "rope_scaling.truncate is 0; true or false" in refusal(rope_scaling=recipe)

    @pytest.mark.parametrize("value", [0, -1.0, 1, True, "1e4", float("inf"), 1e31, 10**400])
    def test_a_base_that_makes_no_table(self, value: Any) -> None:
        assert "rope_theta is " in refusal(rope_theta=value)
        inside = refusal(rope_parameters={"rope_type": "default", "rope_theta": value})
        assert "rope_parameters.rope_theta is " in inside

    def test_frequencies_that_contradict(self) -> None:
        block = {**BLOCK, "low_freq_factor": 4.0, "high_freq_factor": 1.0}
        message = refusal(rope_scaling={"type": "llama3", **block})
        assert message.startswith("rope_scaling: ")
        assert "high_freq_factor" in message
        ramp = {"type": "yarn", "factor": 4.0, "beta_fast": 1, "beta_slow": 2}
        assert refusal(rope_scaling=ramp).startswith("rope_scaling: yarn RoPE scaling needs beta_fast")

    @pytest.mark.parametrize("width", [0, 7])
    def test_a_width_that_has_no_pairs_names_where_it_comes_from(self, width: int) -> None:
        """The fault lies in head_dim, so "rope_theta" in the message would send the reader astray."""
        message = refusal(width=width)
        assert f"head_dim (or hidden_size / num_attention_heads) gives a rotary width of {width}" in message

    @pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
    @pytest.mark.parametrize("value", [[], "yarn", 4.0, False])
    def test_what_is_no_dict(self, key: str, value: Any) -> None:
        assert f"{key} is {value!r}" in refusal(**{key: value})
