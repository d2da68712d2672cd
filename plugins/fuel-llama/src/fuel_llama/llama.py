"""Llama and the many models of its architecture: TinyLlama, SmolLM, Yi and others.

Source: LLaMA (arXiv:2302.13971), The Llama 3 Herd of Models (arXiv:2407.21783) and the published configs of
Llama 2 to 3.3, TinyLlama and SmolLM2.
"""

from dataclasses import dataclass
from typing import Any

from pydantic import PositiveFloat

from fuel_core.blocks import Decoder, pre_norm_decoder
from fuel_core.config import AttentionKeys, GatedMLPKeys, RopeKeys
from fuel_core.family import LLAMA_NAMES, Family, Mutation, WeightNames
from fuel_core.plans import LayerPlan, MaskPlan, ModelPlan, NormPlan, RopePlan


class LlamaConfig(AttentionKeys, RopeKeys, GatedMLPKeys):
    """The keys of a Llama config.json. ``attention_bias`` puts biases on q, k, v and the output."""

    rms_norm_eps: PositiveFloat = 1e-6
    attention_bias: bool = False
    mlp_bias: bool = False


@dataclass(frozen=True, kw_only=True)
class LlamaOptions:
    """What a user may choose at load: nothing."""


def plan(config: LlamaConfig, options: LlamaOptions) -> ModelPlan:
    layers, bias = config.num_hidden_layers, config.attention_bias
    rope = config.rope_spelling(default_theta=1e4, width=config.head_dim)
    attention, mlp = config.attention(qkv_bias=bias, out_bias=bias), config.gated_mlp(bias=config.mlp_bias)
    return config.model_plan(
        "llama",
        norm=NormPlan("rms", config.rms_norm_eps),
        layers=[LayerPlan(attention, mlp)] * layers,
        mask=MaskPlan.dense(layers),
        rope=RopePlan.single(rope.single, layers),
        cache=config.kv_cache(),
        notes=rope.notes,
    )


def build(config: LlamaConfig, plan: ModelPlan) -> Decoder:
    return pre_norm_decoder(plan)


_TINY: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-3,
    "rope_theta": 29.0,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
}

TINY = {
    "plain": _TINY,
    "tied-mqa": {**_TINY, "tie_word_embeddings": True, "num_key_value_heads": 1},
    "biased-head-dim": {**_TINY, "attention_bias": True, "mlp_bias": True, "head_dim": 12},
    "llama3": {
        **_TINY,
        "head_dim": 64,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    },
}


def _drop_output_biases(decoder: Decoder) -> None:
    for name, parameter in decoder.named_parameters():
        if name.endswith(("out.bias", "down.bias")):
            parameter.zero_()


LLAMA = Family(
    name="llama",
    config=LlamaConfig,
    options=LlamaOptions,
    plan=plan,
    build=build,
    weights=WeightNames(modules=LLAMA_NAMES, excused=()),
    tiny=TINY,
    mutations=(
        Mutation(
            name="rope_theta is ignored",
            config=lambda raw: {**raw, "rope_theta": 1e4},
        ),
    ),
)
