"""DeepSeek-V2, V2-Lite and V2.5: softmax over all experts, chosen from all or from the best groups.

Source: DeepSeek-V2 (arXiv:2405.04434) and the published configs and weights of V2, V2-Lite and V2.5.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt

from fuel_core.blocks import Decoder, pre_norm_decoder
from fuel_core.family import Family
from fuel_core.plans import ModelPlan
from fuel_deepseek.architecture import WEIGHTS, DeepSeekKeys, DeepSeekOptions, decoder_plan, router_plan
from fuel_deepseek.tiny import MUTATIONS, TINY_KEYS, TINY_YARN


class DeepSeekV2Config(DeepSeekKeys):
    """The keys of a DeepSeek-V2 config.json. Without ``n_routed_experts`` the model is dense."""

    n_routed_experts: Annotated[int, Field(ge=0)] | None = None
    n_shared_experts: Annotated[int, Field(ge=0)] | None = None
    num_experts_per_tok: PositiveInt | None = None
    first_k_dense_replace: Annotated[int, Field(ge=0)] = 0
    n_group: PositiveInt | None = None
    topk_group: PositiveInt | None = None
    norm_topk_prob: bool = False
    routed_scaling_factor: Annotated[float, Field(gt=0)] = 1.0
    topk_method: Literal["greedy", "group_limited_greedy"] = "greedy"
    scoring_func: Literal["softmax"] = "softmax"


_NORMALISED = (
    "norm_topk_prob is true: the weights of chosen experts are normalised and not multiplied by "
    "routed_scaling_factor, as in DeepSeek's own code (transformers would multiply and not normalise)"
)


def plan(config: DeepSeekV2Config, options: DeepSeekOptions) -> ModelPlan:
    # one expert alone is never normalised, and what is normalised is not scaled
    normalise = config.norm_topk_prob and config.num_experts_per_tok != 1
    router = router_plan(
        config,
        scoring="softmax",
        group_score="max" if config.topk_method == "group_limited_greedy" else None,
        correction_bias=False,
        normalise=normalise,
        scale=1.0 if normalise else config.routed_scaling_factor,
    )
    notes = [_NORMALISED] if router is not None and normalise else []
    return decoder_plan("deepseek_v2", config, options, layout="interleaved", router=router, notes=notes)


def build(config: DeepSeekV2Config, plan: ModelPlan) -> Decoder:
    return pre_norm_decoder(plan)


_TINY: dict[str, Any] = {
    **TINY_KEYS,
    "model_type": "deepseek_v2",
    "q_lora_rank": None,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "greedy",
    "scoring_func": "softmax",
    "norm_topk_prob": False,
}

TINY = {
    "plain-q": _TINY,
    "groups": {
        **_TINY,
        "q_lora_rank": 20,
        "v_head_dim": 16,
        "n_group": 4,
        "topk_group": 2,
        "topk_method": "group_limited_greedy",
        "tie_word_embeddings": True,
    },
    "yarn": {**_TINY, "qk_rope_head_dim": 32, "rope_scaling": TINY_YARN},
    "dense-biased": {
        **_TINY,
        "q_lora_rank": 20,
        "attention_bias": True,
        "mlp_bias": True,
        "hidden_act": "gelu",
        "first_k_dense_replace": 3,
    },
}

DEEPSEEK_V2 = Family(
    name="deepseek_v2",
    config=DeepSeekV2Config,
    options=DeepSeekOptions,
    plan=plan,
    build=build,
    weights=WEIGHTS,
    tiny=TINY,
    mutations=MUTATIONS,
)
