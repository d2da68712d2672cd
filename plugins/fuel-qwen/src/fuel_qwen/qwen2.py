"""Qwen2 and Qwen2.5, dense: biased q, k and v, grouped queries, SwiGLU, optional windows.

Source: Qwen2 Technical Report (arXiv:2407.10671) and the published configs of Qwen2 and Qwen2.5.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveFloat

from fuel_core.blocks import Decoder, FusedLinear, pre_norm_decoder
from fuel_core.config import NULL_IS_ABSENT, AttentionKeys, GatedMLPKeys, RopeKeys
from fuel_core.errors import ConfigError
from fuel_core.family import LLAMA_NAMES, Family, Mutation, WeightNames
from fuel_core.plans import LayerPlan, MaskPlan, ModelPlan, NormPlan, RopePlan


class Qwen2Config(AttentionKeys, RopeKeys, GatedMLPKeys):
    """The keys of a Qwen2 config.json.

    Absent: ``sliding_window`` is the whole context, ``max_window_layers`` every layer; null means
    absent, but a null ``sliding_window`` is no window.
    """

    irrelevant: ClassVar = {"use_mrope": (False,)}

    rms_norm_eps: PositiveFloat = 1e-6
    use_sliding_window: bool = False
    sliding_window: Annotated[int, Field(ge=0)] | None = Field(
        default_factory=lambda known: known["max_position_embeddings"]
    )
    max_window_layers: Annotated[Annotated[int, Field(ge=0)], NULL_IS_ABSENT] = Field(
        default_factory=lambda known: known["num_hidden_layers"]
    )
    layer_types: Annotated[tuple[str, ...] | None, NULL_IS_ABSENT, Field(strict=False)] = None


@dataclass(frozen=True, kw_only=True)
class Qwen2Options:
    """What a user may choose at load.

    Attributes:
        window_layers: which layers slide when ``max_window_layers`` is N and ``layer_types`` is
            absent: the ``first`` N (Qwen's documentation), or all after them (``last``, transformers).
        absent_rope_theta: the RoPE base when config.json states none (transformers: 1e4).
    """

    window_layers: Literal["first", "last"] = "first"
    absent_rope_theta: float = 1e6


def plan(config: Qwen2Config, options: Qwen2Options) -> ModelPlan:
    layers = config.num_hidden_layers
    rope = config.rope_spelling(default_theta=options.absent_rope_theta, width=config.head_dim)
    notes = list(rope.notes)
    if not rope.theta_stated:
        notes.append(
            f"rope_theta is absent: {options.absent_rope_theta:g} is used (transformers would take 1e4); "
            "choose with the option absent_rope_theta"
        )
    return config.model_plan(
        "qwen2",
        norm=NormPlan("rms", config.rms_norm_eps),
        layers=[LayerPlan(config.attention(qkv_bias=True, out_bias=False), config.gated_mlp())] * layers,
        mask=_mask(config, options, notes),
        rope=RopePlan.single(rope.single, layers),
        cache=config.kv_cache(),
        notes=notes,
    )


def _mask(config: Qwen2Config, options: Qwen2Options, notes: list[str]) -> MaskPlan:
    """``layer_types`` when stated; else the layers that ``max_window_layers`` and the option choose."""
    layers, split, window = config.num_hidden_layers, config.max_window_layers, config.sliding_window
    stated = config.model_fields_set
    if config.layer_types is not None:
        if len(config.layer_types) != layers:
            raise ConfigError(
                f"layer_types names {len(config.layer_types)} layers, num_hidden_layers is {layers}"
            )
        slides = "sliding_attention" in config.layer_types
        if slides and "use_sliding_window" in stated and not config.use_sliding_window:
            notes.append("layer_types lets layers slide although use_sliding_window is false; it is followed")
        return MaskPlan.from_layer_types(config.layer_types, window)
    if not config.use_sliding_window:
        if window and "sliding_window" in stated and "use_sliding_window" not in stated:
            notes.append(
                f"sliding_window is {window}, but use_sliding_window is absent: no layer "
                "slides (transformers reads it so too)"
            )
        return MaskPlan.dense(layers)
    if not window:
        return MaskPlan.dense(layers)
    if "sliding_window" not in stated:
        notes.append(
            f"sliding_window is absent: the whole context, {window} tokens, is used "
            "(transformers would take 4096)"
        )
    theirs = range(split if "max_window_layers" in stated else 28, layers)
    ours = range(split) if options.window_layers == "first" else range(split, layers)
    sliding = [layer for layer in range(layers) if layer in ours]
    if sliding != list(theirs):
        notes.append(
            f"the layers {_span(sliding)} slide; transformers would let {_span(list(theirs))} slide; choose "
            "with the option window_layers, or state layer_types in config.json"
        )
    return MaskPlan.per_layer_window(layers, window, lambda layer: layer in ours)


def _span(layers: list[int]) -> str:
    return f"{layers[0]}-{layers[-1]}" if layers else "none"


def build(config: Qwen2Config, plan: ModelPlan) -> Decoder:
    return pre_norm_decoder(plan)


WEIGHTS = WeightNames(modules=LLAMA_NAMES, excused=())

_TINY = {
    "model_type": "qwen2",
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-3,
    "rope_theta": 37.0,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "hidden_act": "silu",
}

TINY = {
    "dense": _TINY,
    "tied": {**_TINY, "tie_word_embeddings": True},
    "all-window": {
        **_TINY,
        "use_sliding_window": True,
        "sliding_window": 7,
        "layer_types": ["sliding_attention"] * 4,
    },
    "mixed-window": {
        **_TINY,
        "use_sliding_window": True,
        "sliding_window": 5,
        "layer_types": ["sliding_attention", "full_attention", "full_attention", "sliding_attention"],
    },
    "head-dim": {**_TINY, "head_dim": 12, "num_key_value_heads": 1},
    "yarn": {
        **_TINY,
        "head_dim": 64,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 8.0,
            "original_max_position_embeddings": 32,
        },
    },
}


def _drop_biases(decoder: Decoder) -> None:
    for name, parameter in decoder.named_parameters():
        if name.endswith("qkv.bias"):
            parameter.zero_()


def _drop_query_biases(decoder: Decoder) -> None:
    for module in decoder.modules():
        if isinstance(module, FusedLinear) and "q" in module.parts:
            module.get_parameter("bias")[: module.parts["q"]] = 0


QWEN2 = Family(
    name="qwen2",
    config=Qwen2Config,
    options=Qwen2Options,
    plan=plan,
    build=build,
    weights=WEIGHTS,
    tiny=TINY,
    mutations=(
        Mutation(
            name="the q, k and v biases are dropped",
            decoder=_drop_biases,
        ),
        Mutation(
            name="the q bias alone is dropped",
            decoder=_drop_query_biases,
        ),
    ),
)
