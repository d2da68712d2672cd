"""Phi-3, Phi-3.5 and Phi-4: Llama's layers with fused projections, and LongRoPE with two tables.

Source: Phi-3 Technical Report (arXiv:2404.14219), Phi-4-Mini Technical Report (arXiv:2503.01743) and the
published configs and weights of Phi-3-mini, Phi-3.5-mini, Phi-4 and Phi-4-mini.
"""

from typing import Any, ClassVar

import torch
from pydantic import PositiveFloat
from torch import nn

from fuel_core.blocks import Attention, Decoder, pre_norm_decoder
from fuel_core.config import GatedMLPKeys, PartialRotaryKeys, RopeSpelling
from fuel_core.family import LLAMA_NAMES, Family, Mutation, WeightNames
from fuel_core.plans import LayerPlan, LongRopeScaling, ModelPlan, NormPlan, RopePlan
from fuel_phi.long_context import LongContextKeys, NoOptions
from fuel_phi.tiny import TINY_KEYS


class Phi3Config(LongContextKeys, PartialRotaryKeys, GatedMLPKeys):
    """The keys of a Phi-3 config.json."""

    irrelevant: ClassVar = {
        **LongContextKeys.irrelevant,
        # harmless only at these values, at which every published file has them
        "attention_bias": (False,),
        "full_attn_mod": (1,),
        "interpolate_factor": (1,),
        "lm_head_bias": (False,),
        "mlp_bias": (False,),
    }

    rms_norm_eps: PositiveFloat = 1e-5


def plan(config: Phi3Config, options: NoOptions) -> ModelPlan:
    layers = config.num_hidden_layers
    rope = config.partial_rope_spelling(
        default_theta=1e4, head_dim=config.head_dim, default_share=1.0, original_length=config.trained_length
    )
    return config.model_plan(
        "phi3",
        norm=NormPlan("rms", config.rms_norm_eps),
        layers=[LayerPlan(config.attention(qkv_bias=False, out_bias=False), config.gated_mlp())] * layers,
        mask=config.windows(),
        rope=RopePlan.single(rope.single, layers),
        cache=config.kv_cache(),
        notes=(*rope.notes, *_length_notes(config, rope)),
    )


def _length_notes(config: Phi3Config, rope: RopeSpelling) -> list[str]:
    scaling = rope.single.scaling
    if not isinstance(scaling, LongRopeScaling) or scaling.original_length == config.trained_length:
        return []
    return [
        f"original_max_position_embeddings is {scaling.original_length} in {rope.key} and absent at the top "
        f"level: {scaling.original_length} is used; transformers would put {config.trained_length} in its "
        "place"
    ]


def build(config: Phi3Config, plan: ModelPlan) -> Decoder:
    return pre_norm_decoder(plan)


WEIGHTS = WeightNames(
    modules={
        **LLAMA_NAMES,
        # one tensor each: rows of q, k, v; rows of gate, up
        "layers.{layer}.mixer.qkv": "model.layers.{layer}.self_attn.qkv_proj",
        "layers.{layer}.feed_forward.gate_up": "model.layers.{layer}.mlp.gate_up_proj",
    },
    excused=(),
)

_TINY: dict[str, Any] = {
    **TINY_KEYS,
    "model_type": "phi3",
    "original_max_position_embeddings": 256,
    "rms_norm_eps": 1e-3,
    "partial_rotary_factor": 1.0,
    "hidden_act": "silu",
    "sliding_window": None,
}

_LONGROPE: dict[str, Any] = {
    "original_max_position_embeddings": 16,
    "rope_scaling": {
        "type": "longrope",
        "short_factor": [1.0, 1.1, 1.2, 1.3],
        "long_factor": [1.5, 3.0, 6.0, 12.0],
    },
}

TINY = {
    "plain": _TINY,
    "window-tied": {**_TINY, "sliding_window": 11, "tie_word_embeddings": True},
    "longrope": {**_TINY, **_LONGROPE},
    "longrope-partial": {
        **_TINY,
        **_LONGROPE,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "partial_rotary_factor": 0.5,
        "sliding_window": 23,
    },
}


def _swap_keys_and_values(decoder: Decoder) -> None:
    for module in decoder.modules():
        if isinstance(module, Attention):
            q, k, v = (module.qkv.parts[part] for part in "qkv")
            queries, keys, values = module.qkv.weight.split((q, k, v))
            module.qkv.weight = nn.Parameter(torch.cat((queries, values, keys)), requires_grad=False)


def _repeat_the_short_factors(raw: dict[str, Any]) -> dict[str, Any]:
    recipe = raw["rope_scaling"]
    return (
        raw if recipe is None else {**raw, "rope_scaling": {**recipe, "long_factor": recipe["short_factor"]}}
    )


PHI3 = Family(
    name="phi3",
    config=Phi3Config,
    options=NoOptions,
    plan=plan,
    build=build,
    weights=WEIGHTS,
    tiny=TINY,
    mutations=(
        Mutation(name="the rows of v stand before those of k", decoder=_swap_keys_and_values),
        Mutation(name="the short factors serve every length", config=_repeat_the_short_factors),
    ),
)
