"""Phi-1, Phi-1.5 and Phi-2: attention and MLP side by side on one LayerNorm, part of each head rotated.

Source: Textbooks Are All You Need II (arXiv:2309.05463) and the published configs and weights of Phi-1,
Phi-1.5 and Phi-2.
"""

from typing import Any, ClassVar, Literal

from pydantic import PositiveFloat, PositiveInt

from fuel_core.blocks import Decoder, ParallelLayer, PreNormLayer, pre_norm_decoder
from fuel_core.config import ANY_VALUE, AttentionKeys, PartialRotaryKeys, RopeOptions
from fuel_core.family import LLAMA_NAMES, Family, Mutation, WeightNames
from fuel_core.plans import ActivationName, LayerPlan, MaskPlan, MLPPlan, ModelPlan, NormPlan, RopePlan
from fuel_phi.tiny import TINY_KEYS


class PhiConfig(AttentionKeys, PartialRotaryKeys):
    """The keys of a Phi config.json. Every linear layer has a bias, the head too, so it is never tied."""

    irrelevant: ClassVar = {"embd_pdrop": ANY_VALUE, "resid_pdrop": ANY_VALUE}

    tie_word_embeddings: Literal[False] = False
    intermediate_size: PositiveInt
    hidden_act: ActivationName = "gelu_new"
    layer_norm_eps: PositiveFloat = 1e-5
    qk_layernorm: bool = False


def plan(config: PhiConfig, options: RopeOptions) -> ModelPlan:
    layers, norm = config.num_hidden_layers, NormPlan("layer", config.layer_norm_eps)
    rope = config.partial_rope_spelling(
        default_theta=1e4, head_dim=config.head_dim, default_share=0.5, dynamic_ntk=options.dynamic_ntk
    )
    attention = config.attention(qkv_bias=True, out_bias=True, qk_norm=norm if config.qk_layernorm else None)
    mlp = MLPPlan(width=config.intermediate_size, activation=config.hidden_act, bias=True)
    return config.model_plan(
        "phi",
        norm=norm,
        layers=[LayerPlan(attention, mlp, parallel=True)] * layers,
        mask=MaskPlan.dense(layers),
        rope=RopePlan.single(rope.single, layers),
        cache=config.kv_cache(),
        head_bias=True,
        notes=rope.notes,
    )


def build(config: PhiConfig, plan: ModelPlan) -> Decoder:
    return pre_norm_decoder(plan)


WEIGHTS = WeightNames(
    modules={
        **LLAMA_NAMES,
        "layers.{layer}.norm": "model.layers.{layer}.input_layernorm",
        "layers.{layer}.mixer.out": "model.layers.{layer}.self_attn.dense",
        "layers.{layer}.mixer.q_norm": "model.layers.{layer}.self_attn.q_layernorm",
        "layers.{layer}.mixer.k_norm": "model.layers.{layer}.self_attn.k_layernorm",
        "layers.{layer}.feed_forward.up": "model.layers.{layer}.mlp.fc1",
        "layers.{layer}.feed_forward.down": "model.layers.{layer}.mlp.fc2",
        "norm": "model.final_layernorm",
    },
    excused=(),
)

_TINY: dict[str, Any] = {
    **TINY_KEYS,
    "model_type": "phi",
    "num_key_value_heads": None,
    "layer_norm_eps": 1e-2,
    "partial_rotary_factor": 0.5,
    "qk_layernorm": False,
    "hidden_act": "gelu_new",
}

TINY = {
    "plain": _TINY,
    "qk-norm": {
        **_TINY,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "partial_rotary_factor": 0.4,
        "qk_layernorm": True,
        "hidden_act": "relu",
    },
}


def _join_in_turn(decoder: Decoder) -> None:
    for index, layer in enumerate(decoder.layers):
        assert isinstance(layer, ParallelLayer)
        decoder.layers[index] = PreNormLayer(
            mixer_norm=layer.norm,
            mixer=layer.mixer,
            feed_forward_norm=layer.norm,
            feed_forward=layer.feed_forward,
        )


PHI = Family(
    name="phi",
    config=PhiConfig,
    options=RopeOptions,
    plan=plan,
    build=build,
    weights=WEIGHTS,
    tiny=TINY,
    mutations=(
        Mutation(name="the MLP reads what attention has added to", decoder=_join_in_turn),
        Mutation(name="the whole head is rotated", config=lambda raw: {**raw, "partial_rotary_factor": 1.0}),
    ),
)
