"""Phi-3.5-MoE and its smaller kin: Llama's layers with LayerNorm, SparseMixer routing to two experts.

Source: Phi-3 Technical Report (arXiv:2404.14219), GRIN (arXiv:2409.12136) and the published configs and
weights of Phi-3.5-MoE and Phi-tiny-MoE.
"""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator
from torch import Tensor, nn

from fuel_core.blocks import Decoder, MoE, pre_norm_decoder
from fuel_core.config import ANY_VALUE, EXPERT_TRAINING_KEYS, NULL_IS_QUERY_HEADS, GatedMLPKeys
from fuel_core.errors import ConfigError
from fuel_core.family import LLAMA_NAMES, Family, Mutation, WeightNames
from fuel_core.plans import LayerPlan, LongRopeScaling, ModelPlan, MoEPlan, NormPlan, RopePlan
from fuel_phi.long_context import LongContextKeys, NoOptions
from fuel_phi.sparse_mixer import SparseMixer, SparseMixerPlan
from fuel_phi.tiny import TINY_KEYS


class PhimoeConfig(LongContextKeys, GatedMLPKeys):
    """The keys of a Phi-3.5-MoE config.json. ``rms_norm_eps`` is that of a LayerNorm, ``intermediate_size``
    the width of one expert, ``router_jitter_noise`` how near SparseMixer's neighbours are. Absent,
    ``num_key_value_heads`` is 8."""

    irrelevant: ClassVar = {
        **LongContextKeys.irrelevant,
        **EXPERT_TRAINING_KEYS,
        "expert_dropout": ANY_VALUE,
        "input_jitter_noise": ANY_VALUE,  # of training alone
    }

    num_key_value_heads: Annotated[PositiveInt, NULL_IS_QUERY_HEADS] = 8
    rms_norm_eps: PositiveFloat = 1e-5
    attention_bias: bool = False
    lm_head_bias: bool = False
    num_local_experts: Annotated[int, Field(ge=2)] = 16
    num_experts_per_tok: Literal[2] = 2
    router_jitter_noise: Annotated[float, Field(ge=0)] = 0.01

    @model_validator(mode="after")
    def _check_head(self) -> Self:
        if self.lm_head_bias and self.tie_word_embeddings:
            raise ValueError("lm_head_bias and tie_word_embeddings are both true; a tied head has no bias")
        return self


def plan(config: PhimoeConfig, options: NoOptions) -> ModelPlan:
    layers, bias = config.num_hidden_layers, config.attention_bias
    rope = config.rope_spelling(
        default_theta=1e6, width=config.head_dim, original_length=config.trained_length
    )
    scaling = rope.single.scaling
    if isinstance(scaling, LongRopeScaling) and None in (scaling.short_mscale, scaling.long_mscale):
        raise ConfigError(f"{rope.key} needs short_mscale and long_mscale, the factors on cos and sin")
    experts = MoEPlan(
        router=SparseMixerPlan(experts=config.num_local_experts, eps=config.router_jitter_noise),
        expert_width=config.intermediate_size,
        activation=config.hidden_act,
        shared=None,
        shared_gate=False,
    )
    return config.model_plan(
        "phimoe",
        norm=NormPlan("layer", config.rms_norm_eps),
        layers=[LayerPlan(config.attention(qkv_bias=bias, out_bias=bias), experts)] * layers,
        mask=config.windows(),
        rope=RopePlan.single(rope.single, layers),
        cache=config.kv_cache(),
        head_bias=config.lm_head_bias,
        notes=rope.notes,
    )


def _experts(hidden_size: int, plan: MoEPlan) -> MoE:
    assert isinstance(plan.router, SparseMixerPlan)
    return MoE(hidden_size, plan, SparseMixer(hidden_size, plan.router))


def build(config: PhimoeConfig, plan: ModelPlan) -> Decoder:
    return pre_norm_decoder(plan, parts={MoEPlan: _experts})


_MOE = "model.layers.{layer}.block_sparse_moe"

WEIGHTS = WeightNames(
    modules={
        **LLAMA_NAMES,
        "layers.{layer}.feed_forward.router": f"{_MOE}.gate",
        "layers.{layer}.feed_forward.experts.gate_up": f"{_MOE}.experts.{{expert}}.{{part}}",
        "layers.{layer}.feed_forward.experts.down": f"{_MOE}.experts.{{expert}}.w2",
    },
    excused=(),
    parts={"gate": "w1", "up": "w3"},
)

_TINY: dict[str, Any] = {
    **TINY_KEYS,
    "model_type": "phimoe",
    "intermediate_size": 20,
    "rms_norm_eps": 1e-2,
    "hidden_act": "silu",
    "sliding_window": None,
    "attention_bias": True,
    "lm_head_bias": True,
    "num_local_experts": 12,
    "num_experts_per_tok": 2,
    "router_jitter_noise": 0.3,
    "input_jitter_noise": 0.01,
}

TINY = {
    "plain": _TINY,
    "window-unbiased-tied": {
        **_TINY,
        "attention_bias": False,
        "lm_head_bias": False,
        "tie_word_embeddings": True,
        "sliding_window": 13,
        "router_jitter_noise": 0.1,
        "hidden_act": "gelu",
    },
    # transformers never takes the long factors, so here both tables are one
    "longrope": {
        **_TINY,
        "rope_scaling": {
            "type": "longrope",
            "short_factor": [1.5, 3.0, 6.0, 12.0],
            "long_factor": [1.5, 3.0, 6.0, 12.0],
            "short_mscale": 1.6,
            "long_mscale": 1.6,
            "original_max_position_embeddings": 16,
        },
    },
}


class _NormalisedTogether(nn.Module):
    def __init__(self, router: nn.Module) -> None:
        super().__init__()
        self.router = router

    def forward(self, x_NM: Tensor) -> tuple[Tensor, Tensor]:
        ids, weights = self.router(x_NM)
        return ids, weights / weights.sum(-1, keepdim=True)


def _normalise_together(decoder: Decoder) -> None:
    for module in list(decoder.modules()):
        if isinstance(module, MoE):
            module.router = _NormalisedTogether(module.router)


PHIMOE = Family(
    name="phimoe",
    config=PhimoeConfig,
    options=NoOptions,
    plan=plan,
    build=build,
    weights=WEIGHTS,
    tiny=TINY,
    mutations=(
        Mutation(name="the two weights are normalised together", decoder=_normalise_together),
        Mutation(
            name="every expert counts as near",
            config=lambda raw: {**raw, "router_jitter_noise": 1e6},
        ),
    ),
)
