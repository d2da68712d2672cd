"""Qwen2 and Qwen2.5, dense: biased q, k and v, grouped queries, SwiGLU, optional windows.

Source: Qwen2 Technical Report (arXiv:2407.10671) and the published configs of Qwen2 and Qwen2.5.
"""

from typing import Any

from fuel_core.blocks import Decoder, FusedLinear, pre_norm_decoder
from fuel_core.family import LLAMA_NAMES, Family, Mutation, WeightNames
from fuel_core.plans import ModelPlan
from fuel_qwen.architecture import QwenKeys, QwenOptions, decoder_plan
from fuel_qwen.tiny import TINY_KEYS, TINY_WINDOW, TINY_YARN
from fuel_qwen.windows import FROM_THE_SPLIT


class Qwen2Config(QwenKeys):
    """The keys of a Qwen2 config.json. Absent, ``num_key_value_heads`` is one for each query head."""


def plan(config: Qwen2Config, options: QwenOptions) -> ModelPlan:
    return decoder_plan(
        "qwen2",
        config,
        options,
        attention=config.attention(qkv_bias=True, out_bias=False),
        feed_forwards=[config.gated_mlp()] * config.num_hidden_layers,
        transformers=FROM_THE_SPLIT,
    )


def build(config: Qwen2Config, plan: ModelPlan) -> Decoder:
    return pre_norm_decoder(plan)


WEIGHTS = WeightNames(modules=LLAMA_NAMES, excused=())

_TINY: dict[str, Any] = {"model_type": "qwen2", **TINY_KEYS}

TINY = {
    "dense": _TINY,
    "tied": {**_TINY, "tie_word_embeddings": True},
    "all-window": {**_TINY, **TINY_WINDOW, "sliding_window": 7, "layer_types": ["sliding_attention"] * 4},
    "mixed-window": {**_TINY, **TINY_WINDOW},
    "head-dim": {**_TINY, "head_dim": 12, "num_key_value_heads": 1},
    "yarn": {**_TINY, **TINY_YARN},
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
    options=QwenOptions,
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
