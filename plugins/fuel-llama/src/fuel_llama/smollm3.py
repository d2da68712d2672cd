"""SmolLM3: Llama of which every fourth layer has no RoPE, and those layers alone may slide.

Source: SmolLM3's model card and published config; NoPE layers follow RoPE to NoPE and Back Again
(arXiv:2501.18795).
"""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

from pydantic import Field, PositiveInt

from fuel_core.config import ANY_VALUE, NULL_IS_ABSENT, NULL_IS_QUERY_HEADS, RopeOptions
from fuel_core.errors import ConfigError
from fuel_core.family import Family, Mutation
from fuel_core.plans import MaskPlan, ModelPlan
from fuel_llama.architecture import WEIGHTS, BiasedKeys, build, decoder_plan
from fuel_llama.tiny import TINY_KEYS

_ZeroOrOne = Annotated[int, Field(ge=0, le=1)]


class SmolLM3Config(BiasedKeys):
    """The keys of a SmolLM3 config.json.

    ``no_rope_layers`` says the opposite of its name: 1 is a layer *with* RoPE, 0 one without. Absent or
    null, every ``no_rope_layer_interval``-th layer has none. Absent, ``num_key_value_heads`` is 4 and
    ``tie_word_embeddings`` true.
    """

    irrelevant: ClassVar = {"max_window_layers": ANY_VALUE, "pretraining_tp": ANY_VALUE}

    num_key_value_heads: Annotated[PositiveInt, NULL_IS_QUERY_HEADS] = 4
    tie_word_embeddings: bool = True
    no_rope_layers: Annotated[tuple[_ZeroOrOne, ...] | None, NULL_IS_ABSENT, Field(strict=False)] = None
    no_rope_layer_interval: PositiveInt = 4
    use_sliding_window: bool = False
    sliding_window: Annotated[int, Field(ge=0)] | None = None
    layer_types: Annotated[tuple[str, ...] | None, NULL_IS_ABSENT, Field(strict=False)] = None


def plan(config: SmolLM3Config, options: RopeOptions) -> ModelPlan:
    notes: list[str] = []
    rotates = _rotates(config)
    return decoder_plan(
        "smollm3",
        config,
        options,
        default_theta=2e6,
        mask=_mask(config, rotates, notes),
        rotates=rotates,
        attention_bias=config.attention_bias,
        mlp_bias=config.mlp_bias,
        notes=notes,
    )


def _rotates(config: SmolLM3Config) -> list[bool]:
    if config.no_rope_layers is None:
        interval = config.no_rope_layer_interval
        return [(layer + 1) % interval != 0 for layer in range(config.num_hidden_layers)]
    _check_covers(config, "no_rope_layers", config.no_rope_layers)
    return [bool(rotated) for rotated in config.no_rope_layers]


def _mask(config: SmolLM3Config, rotates: Sequence[bool], notes: list[str]) -> MaskPlan:
    """``layer_types`` when stated; else the layers without RoPE, where windows are switched on."""
    layers, window, on = config.num_hidden_layers, config.sliding_window, config.use_sliding_window
    if config.layer_types is not None:
        _check_covers(config, "layer_types", config.layer_types)
        if "sliding_attention" in config.layer_types and not on:
            notes.append("layer_types is followed: layers slide although use_sliding_window is not true")
        return MaskPlan.from_layer_types(config.layer_types, window)
    if on and not window:
        notes.append(f"use_sliding_window is true, but sliding_window is {window}: no layer slides")
    if window and "use_sliding_window" not in config.model_fields_set:
        notes.append(f"sliding_window is {window}, but use_sliding_window is absent: no layer slides")
    return MaskPlan.per_layer_window(layers, window, lambda layer: on and not rotates[layer])


def _check_covers(config: SmolLM3Config, key: str, stated: Sequence[object]) -> None:
    if len(stated) != config.num_hidden_layers:
        raise ConfigError(
            f"{key} states {len(stated)} layers, num_hidden_layers is {config.num_hidden_layers}"
        )


_TINY: dict[str, Any] = {
    **TINY_KEYS,
    "model_type": "smollm3",
    "num_hidden_layers": 5,
    "rope_theta": 43.0,
    "no_rope_layer_interval": 3,
    "attention_bias": False,
    "mlp_bias": False,
    "use_sliding_window": False,
    "sliding_window": None,
}
_MIXED = [1, 0, 0, 1, 1]

TINY = {
    "interval": _TINY,
    "window": {**_TINY, "no_rope_layers": _MIXED, "use_sliding_window": True, "sliding_window": 5},
    "layer-types": {
        **_TINY,
        "no_rope_layers": _MIXED,
        "use_sliding_window": True,
        "sliding_window": 7,
        "layer_types": ["sliding_attention", *["full_attention"] * 3, "sliding_attention"],
    },
    "no-rope-tied": {**_TINY, "no_rope_layers": [0] * 5, "tie_word_embeddings": True},
    "biased-head-dim": {**_TINY, "attention_bias": True, "mlp_bias": True, "head_dim": 12},
}


def _believe_the_name(raw: dict[str, Any]) -> dict[str, Any]:
    stated = raw.get("no_rope_layers")
    return raw if stated is None else {**raw, "no_rope_layers": [1 - rotated for rotated in stated]}


def _count_from_zero(raw: dict[str, Any]) -> dict[str, Any]:
    if "no_rope_layers" in raw:
        return raw
    interval, layers = raw["no_rope_layer_interval"], raw["num_hidden_layers"]
    return {**raw, "no_rope_layers": [int(layer % interval != 0) for layer in range(layers)]}


def _slide_where_rope_is(raw: dict[str, Any]) -> dict[str, Any]:
    if not raw["use_sliding_window"] or "layer_types" in raw:
        return raw
    kinds = ["sliding_attention" if rotated else "full_attention" for rotated in raw["no_rope_layers"]]
    return {**raw, "layer_types": kinds}


SMOLLM3 = Family(
    name="smollm3",
    config=SmolLM3Config,
    options=RopeOptions,
    plan=plan,
    build=build,
    weights=WEIGHTS,
    tiny=TINY,
    mutations=(
        Mutation(name="no_rope_layers lists the layers without RoPE", config=_believe_the_name),
        Mutation(name="every layer has RoPE", config=lambda raw: {**raw, "no_rope_layers": [1] * 5}),
        Mutation(name="the interval counts from layer 0", config=_count_from_zero),
        Mutation(name="windows are on the layers with RoPE", config=_slide_where_rope_is),
    ),
)
