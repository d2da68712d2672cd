"""Qwen3-30B-A3B and Qwen3-235B-A22B: Qwen3's attention, routed experts and no shared one.

Source: Qwen3 Technical Report (arXiv:2505.09388) and the published configs and weights of both.
"""

from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, PositiveInt, model_validator

from fuel_core.blocks import Decoder, pre_norm_decoder
from fuel_core.config import NULL_IS_ABSENT, NULL_IS_QUERY_HEADS
from fuel_core.family import EXPERT_NAMES, LLAMA_NAMES, Family, WeightNames
from fuel_core.plans import ModelPlan
from fuel_qwen.architecture import QK_NORM_NAMES, Qwen3Keys, QwenOptions, decoder_plan
from fuel_qwen.sparse import SparseKeys
from fuel_qwen.tiny import QK_NORM_MUTATIONS, ROUTER_MUTATIONS, TINY_EXPERTS, TINY_KEYS, TINY_SPARSE_LAYERS
from fuel_qwen.windows import EVERY_LAYER

ExpertCount = Annotated[Annotated[int, Field(ge=0)] | None, NULL_IS_ABSENT]


class Qwen3MoEConfig(SparseKeys, Qwen3Keys):
    """The keys of a Qwen3-MoE config.json.

    Absent: ``num_key_value_heads`` is 4 (null: one for each query head), ``head_dim`` the quotient, unlike
    the dense Qwen3's. ``num_local_experts`` is the name under which transformers 5 saves ``num_experts``;
    0 is a dense model.
    """

    irrelevant: ClassVar = {
        **SparseKeys.irrelevant,
        "qkv_bias": (False,),
        "shared_expert_intermediate_size": (0,),
        "use_qk_norm": (True,),
    }

    num_key_value_heads: Annotated[PositiveInt, NULL_IS_QUERY_HEADS] = 4
    num_experts: ExpertCount = None
    num_local_experts: ExpertCount = None

    @model_validator(mode="after")
    def _check_experts(self) -> Self:
        counts = {self.num_experts, self.num_local_experts} - {None}
        if not counts:
            raise ValueError("num_experts is missing")
        if len(counts) > 1:
            raise ValueError(
                f"num_experts is {self.num_experts}, num_local_experts is {self.num_local_experts}; keep the "
                "one that the weights have"
            )
        return self

    @property
    def routed_experts(self) -> int:
        return self.num_experts or self.num_local_experts or 0


def plan(config: Qwen3MoEConfig, options: QwenOptions) -> ModelPlan:
    return decoder_plan(
        "qwen3_moe",
        config,
        options,
        attention=config.normalised_attention(),
        feed_forwards=config.feed_forwards(experts=config.routed_experts, shared=None),
        transformers=EVERY_LAYER,
    )


def build(config: Qwen3MoEConfig, plan: ModelPlan) -> Decoder:
    return pre_norm_decoder(plan)


_TINY: dict[str, Any] = {
    "model_type": "qwen3_moe",
    **TINY_KEYS,
    **TINY_EXPERTS,
    "head_dim": 12,
    "attention_bias": False,
    "norm_topk_prob": True,
}

TINY = {
    "plain": _TINY,
    "sparse-layers": {**_TINY, **TINY_SPARSE_LAYERS, "norm_topk_prob": False, "tie_word_embeddings": True},
    "biased-gelu": {**_TINY, "attention_bias": True, "num_key_value_heads": 1, "hidden_act": "gelu"},
}

QWEN3_MOE = Family(
    name="qwen3_moe",
    config=Qwen3MoEConfig,
    options=QwenOptions,
    plan=plan,
    build=build,
    weights=WeightNames(modules={**LLAMA_NAMES, **EXPERT_NAMES, **QK_NORM_NAMES}, excused=()),
    tiny=TINY,
    mutations=(*QK_NORM_MUTATIONS, *ROUTER_MUTATIONS),
)
