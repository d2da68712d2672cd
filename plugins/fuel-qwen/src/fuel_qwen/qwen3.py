"""Qwen3, dense: q and k normalised head by head before they are rotated, heads of 128 dimensions.

Source: Qwen3 Technical Report (arXiv:2505.09388) and the published configs of Qwen3.
"""

from typing import Annotated, Any

from pydantic import PositiveInt

from fuel_core.blocks import Decoder, pre_norm_decoder
from fuel_core.config import NULL_IS_ABSENT, NULL_IS_QUERY_HEADS
from fuel_core.family import LLAMA_NAMES, Family, Mutation, WeightNames
from fuel_core.plans import ModelPlan
from fuel_qwen.architecture import QK_NORM_NAMES, Qwen3Keys, QwenOptions, decoder_plan
from fuel_qwen.tiny import QK_NORM_MUTATIONS, TINY_KEYS, TINY_WINDOW, TINY_YARN
from fuel_qwen.windows import FROM_THE_SPLIT


class Qwen3Config(Qwen3Keys):
    """The keys of a Qwen3 config.json.

    Absent: ``num_key_value_heads`` is 32 (null: one for each query head), ``head_dim`` is 128 whatever
    the width of the model (null too).
    """

    num_key_value_heads: Annotated[PositiveInt, NULL_IS_QUERY_HEADS] = 32
    head_dim: Annotated[PositiveInt, NULL_IS_ABSENT] = 128


def plan(config: Qwen3Config, options: QwenOptions) -> ModelPlan:
    return decoder_plan(
        "qwen3",
        config,
        options,
        attention=config.normalised_attention(),
        feed_forwards=[config.gated_mlp()] * config.num_hidden_layers,
        transformers=FROM_THE_SPLIT,
    )


def build(config: Qwen3Config, plan: ModelPlan) -> Decoder:
    return pre_norm_decoder(plan)


_TINY: dict[str, Any] = {"model_type": "qwen3", **TINY_KEYS, "head_dim": 12, "attention_bias": False}

TINY = {
    "plain": _TINY,
    "tied-biased": {
        **_TINY,
        "tie_word_embeddings": True,
        "attention_bias": True,
        "num_key_value_heads": 1,
        "hidden_act": "gelu",
    },
    "mixed-window": {**_TINY, **TINY_WINDOW},
    "yarn": {**_TINY, **TINY_YARN},
}

QWEN3 = Family(
    name="qwen3",
    config=Qwen3Config,
    options=QwenOptions,
    plan=plan,
    build=build,
    weights=WeightNames(modules={**LLAMA_NAMES, **QK_NORM_NAMES}, excused=()),
    tiny=TINY,
    mutations=(
        *QK_NORM_MUTATIONS,
        Mutation(name="rope_theta is ignored", config=lambda raw: {**raw, "rope_theta": 1e6}),
    ),
)
