"""DeepSeek-V3, V3.1 and R1: sigmoid scores, a bias that chooses and never weighs, groups by their best two.

Source: DeepSeek-V3 Technical Report (arXiv:2412.19437) and the published configs and weights of V3 and R1.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt

from fuel_core.blocks import Decoder, pre_norm_decoder
from fuel_core.family import Family
from fuel_core.plans import Layout, ModelPlan
from fuel_deepseek.architecture import WEIGHTS, DeepSeekKeys, DeepSeekOptions, decoder_plan, router_plan
from fuel_deepseek.tiny import MUTATIONS, TINY_KEYS, TINY_YARN


class DeepSeekV3Config(DeepSeekKeys):
    """The keys of a DeepSeek-V3 config.json; absent, those of experts are V3's own.

    ``rope_interleave`` false pairs the rotated dimensions by halves. ``num_nextn_predict_layers`` layers
    are stored after the model's own and are not loaded.
    """

    n_routed_experts: Annotated[int, Field(ge=0)] | None = 256
    n_shared_experts: Annotated[int, Field(ge=0)] | None = 1
    num_experts_per_tok: PositiveInt | None = 8
    moe_intermediate_size: PositiveInt | None = 2048
    first_k_dense_replace: Annotated[int, Field(ge=0)] = 3
    n_group: PositiveInt | None = 8
    topk_group: PositiveInt | None = 4
    norm_topk_prob: bool = True
    routed_scaling_factor: Annotated[float, Field(gt=0)] = 2.5
    topk_method: Literal["noaux_tc"] = "noaux_tc"
    scoring_func: Literal["sigmoid"] = "sigmoid"
    rope_interleave: bool = True
    num_nextn_predict_layers: Annotated[int, Field(ge=0)] = 1

    @property
    def further_layers(self) -> int:
        return self.num_nextn_predict_layers


def plan(config: DeepSeekV3Config, options: DeepSeekOptions) -> ModelPlan:
    router = router_plan(
        config,
        scoring="sigmoid",
        group_score="top2",
        correction_bias=True,
        normalise=config.norm_topk_prob,
        scale=config.routed_scaling_factor,
    )
    layout: Layout = "interleaved" if config.rope_interleave else "half"
    return decoder_plan("deepseek_v3", config, options, layout=layout, router=router)


def build(config: DeepSeekV3Config, plan: ModelPlan) -> Decoder:
    return pre_norm_decoder(plan)


_TINY: dict[str, Any] = {
    **TINY_KEYS,
    "model_type": "deepseek_v3",
    "q_lora_rank": 20,
    "n_group": 4,
    "topk_group": 2,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "norm_topk_prob": True,
    "rope_interleave": True,
}

TINY = {
    "groups": _TINY,
    "yarn": {**_TINY, "qk_rope_head_dim": 32, "v_head_dim": 16, "rope_scaling": TINY_YARN},
    "one-group": {**_TINY, "q_lora_rank": None, "n_group": 1, "topk_group": 1, "norm_topk_prob": False},
    "half-biased": {
        **_TINY,
        "rope_interleave": False,
        "attention_bias": True,
        "tie_word_embeddings": True,
        "hidden_act": "gelu",
    },
}

DEEPSEEK_V3 = Family(
    name="deepseek_v3",
    config=DeepSeekV3Config,
    options=DeepSeekOptions,
    plan=plan,
    build=build,
    weights=WEIGHTS,
    tiny=TINY,
    mutations=MUTATIONS,
)
