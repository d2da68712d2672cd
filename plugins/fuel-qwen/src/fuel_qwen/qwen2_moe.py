"""Qwen1.5-MoE and Qwen2-57B-A14B: Qwen2's attention, routed experts beside a shared one with a gate.

Source: Qwen2 Technical Report (arXiv:2407.10671) and the published configs and weights of Qwen1.5-MoE-A2.7B
and Qwen2-57B-A14B.
"""

from typing import Annotated, Any

from pydantic import Field, PositiveInt

from fuel_core.blocks import Decoder, MoE, pre_norm_decoder
from fuel_core.config import NULL_IS_QUERY_HEADS
from fuel_core.family import EXPERT_NAMES, LLAMA_NAMES, Family, Mutation, WeightNames
from fuel_core.plans import ModelPlan
from fuel_qwen.architecture import QwenOptions, decoder_plan
from fuel_qwen.sparse import SparseKeys
from fuel_qwen.tiny import ROUTER_MUTATIONS, TINY_EXPERTS, TINY_KEYS, TINY_SPARSE_LAYERS
from fuel_qwen.windows import EVEN_BELOW_THE_SPLIT


class Qwen2MoEConfig(SparseKeys):
    """The keys of a Qwen2-MoE config.json.

    Absent: ``num_key_value_heads`` is 16 (null: one for each query head), ``qkv_bias`` is true.
    ``num_experts`` 0 is a dense model; ``shared_expert_intermediate_size`` 0 is no shared expert.
    """

    num_key_value_heads: Annotated[PositiveInt, NULL_IS_QUERY_HEADS] = 16
    qkv_bias: bool = True
    num_experts: Annotated[int, Field(ge=0)]
    shared_expert_intermediate_size: Annotated[int, Field(ge=0)]


def plan(config: Qwen2MoEConfig, options: QwenOptions) -> ModelPlan:
    width = config.shared_expert_intermediate_size
    shared = config.gated_mlp(width=width) if width else None
    return decoder_plan(
        "qwen2_moe",
        config,
        options,
        attention=config.attention(qkv_bias=config.qkv_bias, out_bias=False),
        feed_forwards=config.feed_forwards(experts=config.num_experts, shared=shared),
        transformers=EVEN_BELOW_THE_SPLIT,
    )


def build(config: Qwen2MoEConfig, plan: ModelPlan) -> Decoder:
    return pre_norm_decoder(plan)


WEIGHTS = WeightNames(
    modules={
        **LLAMA_NAMES,
        **EXPERT_NAMES,
        "layers.{layer}.feed_forward.shared.gate_up": "model.layers.{layer}.mlp.shared_expert.{part}_proj",
        "layers.{layer}.feed_forward.shared.down": "model.layers.{layer}.mlp.shared_expert.down_proj",
        "layers.{layer}.feed_forward.shared_gate": "model.layers.{layer}.mlp.shared_expert_gate",
    },
    excused=(),
)

_TINY: dict[str, Any] = {
    "model_type": "qwen2_moe",
    **TINY_KEYS,
    **TINY_EXPERTS,
    "shared_expert_intermediate_size": 28,
    "qkv_bias": True,
}

TINY = {
    "plain": _TINY,
    "sparse-layers": {**_TINY, **TINY_SPARSE_LAYERS, "norm_topk_prob": True, "tie_word_embeddings": True},
    "unbiased-gelu": {**_TINY, "qkv_bias": False, "num_key_value_heads": 1, "hidden_act": "gelu"},
}


def _open_the_gate(decoder: Decoder) -> None:
    for module in decoder.modules():
        if isinstance(module, MoE):
            module.shared_gate = None


QWEN2_MOE = Family(
    name="qwen2_moe",
    config=Qwen2MoEConfig,
    options=QwenOptions,
    plan=plan,
    build=build,
    weights=WEIGHTS,
    tiny=TINY,
    mutations=(
        *ROUTER_MUTATIONS,
        Mutation(name="the shared expert's gate stands open", decoder=_open_the_gate),
    ),
)
