"""Which layers of the Qwen families slide, and what a load says where transformers reads it otherwise."""

from typing import Any

import pytest

from fuel_core.errors import ConfigError
from fuel_core.plans import MaskPlan, ModelPlan
from fuel_core.registry import Registry
from fuel_qwen.architecture import QwenOptions

SHAPE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 36,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rope_theta": 1e6,
}
EXPERTS: dict[str, Any] = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 20}
KEYS: dict[str, dict[str, Any]] = {
    "qwen2": {},
    "qwen3": {"head_dim": 16},
    "qwen2_moe": {**EXPERTS, "shared_expert_intermediate_size": 28},
    "qwen3_moe": EXPERTS,
}
DENSE, ALL = ("qwen2", "qwen3"), tuple(KEYS)
EVEN = "0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26"
"""The layers that transformers lets slide in Qwen2-MoE below the split of 28."""


def planned(family: str, options: QwenOptions | None = None, **changes: Any) -> ModelPlan:
    """The plan of SHAPE with changes; ``...`` takes a key away."""
    raw = {"model_type": family, **SHAPE, **KEYS[family], **changes}
    raw = {key: value for key, value in raw.items() if value is not ...}
    definition = Registry.discover().family(family)
    config, _ = definition.config.read(raw, source="here/config.json")
    return definition.plan(config, options or QwenOptions())


def sliding(model: ModelPlan) -> list[int]:
    return [layer for layer in range(model.mask.layers) if model.mask.window(layer) is not None]


def windows(model: ModelPlan) -> set[int | None]:
    return set(model.mask.windows)


@pytest.mark.parametrize("family", ALL)
class TestEveryFamily:
    """Qwen's documentation: the first ``max_window_layers`` slide."""

    def test_a_width_alone_slides_nothing_and_says_so(self, family: str) -> None:
        """Files with a sliding_window and no switch silently got no window; that is right, and worth
        a word. The cache must not be cut to the window either."""
        model = planned(family, sliding_window=2048)
        assert model.mask == MaskPlan.dense(36)
        assert model.position_limit == 256
        (note,) = model.notes
        assert "sliding_window is 2048, but use_sliding_window is absent" in note

    def test_the_switch_off_slides_nothing_without_a_word(self, family: str) -> None:
        """As every published Qwen states it."""
        model = planned(family, use_sliding_window=False, sliding_window=131_072, max_window_layers=28)
        assert model.mask == MaskPlan.dense(36)
        assert model.notes == ()

    @pytest.mark.parametrize("width", [None, 0])
    def test_no_width_is_no_window(self, family: str, width: int | None) -> None:
        """A note said that layers 0-27 slide while none did. transformers 5 saves a Qwen2-MoE without
        windows as a width of 0."""
        for switch in (True, False):
            model = planned(family, use_sliding_window=switch, sliding_window=width, max_window_layers=28)
            assert model.mask == MaskPlan.dense(36)
            assert model.notes == ()

    def test_an_absent_width_is_the_whole_context_and_says_so(self, family: str) -> None:
        model = planned(family, use_sliding_window=True, max_window_layers=36)
        assert windows(model) == {256}
        assert any("the whole context, 256 tokens" in note and "4096" in note for note in model.notes)

    def test_the_option_takes_the_last_layers(self, family: str) -> None:
        last = QwenOptions(window_layers="last")
        model = planned(family, last, use_sliding_window=True, sliding_window=500, max_window_layers=28)
        assert sliding(model) == list(range(28, 36))

    def test_null_means_absent(self, family: str) -> None:
        keys = {"use_sliding_window": True, "sliding_window": 16}
        absent = planned(family, **keys)
        null = planned(family, **keys, max_window_layers=None, layer_types=None)
        assert sliding(absent) == list(range(36))
        assert (null, null.notes) == (absent, absent.notes)

    def test_layer_types_win(self, family: str) -> None:
        kinds = ["full_attention"] * 30 + ["sliding_attention"] * 6
        keys = {"use_sliding_window": True, "sliding_window": 500, "max_window_layers": 28}
        assert sliding(planned(family, **keys, layer_types=kinds)) == list(range(30, 36))

    def test_layer_types_must_cover_the_layers(self, family: str) -> None:
        with pytest.raises(ConfigError, match="layer_types names 2 layers, num_hidden_layers is 36"):
            planned(family, layer_types=["full_attention"] * 2)

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
    def test_nonsense_names_its_key(self, family: str, changes: dict[str, Any], named: str) -> None:
        with pytest.raises(ConfigError, match=named):
            planned(family, **changes)


@pytest.mark.parametrize(
    ("layers", "split", "ours", "theirs"),
    [
        (36, 28, "0-27", {"qwen2": "28-35", "qwen3": "28-35", "qwen2_moe": EVEN, "qwen3_moe": "0-35"}),
        (36, 36, "0-35", {"qwen2": "none", "qwen3": "none", "qwen2_moe": EVEN + ", 28, 30, 32, 34"}),
        (5, ..., "0-4", {"qwen2": "none", "qwen3": "none", "qwen2_moe": "0, 2, 4"}),
        (36, 0, "none", {"qwen2": "0-35", "qwen3": "0-35", "qwen3_moe": "0-35"}),
        (1, 1, "0", {"qwen2": "none", "qwen3": "none"}),
    ],
    ids=["split", "all", "absent", "none", "one layer"],
)
@pytest.mark.parametrize("family", ALL)
def test_where_transformers_lets_other_layers_slide_a_note_names_both(
    family: str, layers: int, split: Any, ours: str, theirs: dict[str, str]
) -> None:
    """A family without an entry reads the file as we do, and no word is lost."""
    model = planned(
        family,
        num_hidden_layers=layers,
        use_sliding_window=True,
        sliding_window=500,
        max_window_layers=split,
    )
    last = layers if split is ... else split
    assert sliding(model) == list(range(last))
    if family not in theirs:
        assert model.notes == ()
        return
    (note,) = model.notes
    assert f"the layers {ours} slide; transformers would let {theirs[family]} slide" in note
    assert "window_layers" in note


@pytest.mark.parametrize("family", DENSE)
def test_the_option_is_transformers_reading_of_a_dense_model(family: str) -> None:
    last = QwenOptions(window_layers="last")
    model = planned(family, last, use_sliding_window=True, sliding_window=500, max_window_layers=28)
    assert model.notes == ()


@pytest.mark.parametrize("family", [name for name in ALL if name != "qwen3_moe"])
def test_layer_types_against_the_switch(family: str) -> None:
    kinds = ["sliding_attention"] * 36
    model = planned(family, use_sliding_window=False, sliding_window=500, layer_types=kinds)
    assert sliding(model) == list(range(36))
    (note,) = model.notes
    assert "use_sliding_window is false" in note


class TestLayerTypesOfQwen3MoE:
    """transformers reads no layer_types there: with windows on, all layers slide."""

    @pytest.mark.parametrize(("switch", "theirs"), [(True, "0-35"), (False, "none")])
    def test_a_note_where_it_differs(self, switch: bool, theirs: str) -> None:
        kinds = ["sliding_attention"] * 2 + ["full_attention"] * 34
        model = planned("qwen3_moe", use_sliding_window=switch, sliding_window=500, layer_types=kinds)
        assert sliding(model) == [0, 1]
        (note,) = model.notes
        assert "lets the layers 0-1 slide" in note
        assert f"transformers does not read it in this family and would let {theirs} slide" in note

    def test_no_note_where_it_does_not(self) -> None:
        kinds = ["sliding_attention"] * 36
        model = planned("qwen3_moe", use_sliding_window=True, sliding_window=500, layer_types=kinds)
        assert (sliding(model), model.notes) == (list(range(36)), ())


def test_the_other_families_let_layer_types_win_without_a_word() -> None:
    kinds = ["full_attention"] * 30 + ["sliding_attention"] * 6
    for family in ("qwen2", "qwen3", "qwen2_moe"):
        model = planned(family, use_sliding_window=True, sliding_window=500, layer_types=kinds)
        assert model.notes == ()
