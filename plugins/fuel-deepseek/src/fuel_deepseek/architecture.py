"""What DeepSeek-V2 and V3 share: latent attention, dense layers first, then experts beside shared ones.

Source: DeepSeek-V2 (arXiv:2405.04434), DeepSeek-V3 (arXiv:2412.19437), their published configs and weights.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, PositiveInt, model_validator

from fuel_core.config import (
    EXPERT_TRAINING_KEYS,
    GatedMLPKeys,
    LatentAttentionKeys,
    RopeKeys,
    RopeOptions,
)
from fuel_core.errors import ConfigError, PlanError
from fuel_core.family import EXPERT_NAMES, LLAMA_NAMES, WeightNames
from fuel_core.plans import (
    LayerPlan,
    Layout,
    MaskPlan,
    ModelPlan,
    MoEPlan,
    NormPlan,
    RopePlan,
    RouterPlan,
    Scaling,
    YarnScaling,
    yarn_magnitude,
)

LATENT_NORM = NormPlan("rms", 1e-6)
"""Of both latents, whatever ``rms_norm_eps`` says: the published models were trained so."""


class DeepSeekKeys(LatentAttentionKeys, RopeKeys, GatedMLPKeys):
    """The keys that both read. No routed experts (null or 0) is a dense model, and then the other keys
    of experts may be absent; no shared experts is no shared branch.

    Layer i has experts iff ``i >= first_k_dense_replace`` and ``i % moe_layer_freq == 0``.
    """

    irrelevant: ClassVar = EXPERT_TRAINING_KEYS

    rms_norm_eps: Annotated[float, Field(gt=0)] = 1e-6
    mlp_bias: bool = False
    n_routed_experts: Annotated[int, Field(ge=0)] | None
    n_shared_experts: Annotated[int, Field(ge=0)] | None
    num_experts_per_tok: PositiveInt | None
    moe_intermediate_size: PositiveInt | None = None
    first_k_dense_replace: Annotated[int, Field(ge=0)]
    moe_layer_freq: PositiveInt = 1
    n_group: PositiveInt | None
    topk_group: PositiveInt | None
    norm_topk_prob: bool
    routed_scaling_factor: Annotated[float, Field(gt=0)]

    @model_validator(mode="after")
    def _check_experts(self) -> Self:
        for key in ("num_experts_per_tok", "moe_intermediate_size"):
            if self.n_routed_experts and getattr(self, key) is None:
                raise ValueError(f"n_routed_experts is {self.n_routed_experts} and {key} is not stated")
        return self


@dataclass(frozen=True, kw_only=True)
class DeepSeekOptions(RopeOptions):
    """What a user may choose at load.

    Attributes:
        mla: the form of latent attention; ``auto`` absorbs short steps and expands long ones.
    """

    mla: Literal["auto", "absorbed", "expanded"] = "auto"


def decoder_plan(
    family: str,
    config: DeepSeekKeys,
    options: DeepSeekOptions,
    *,
    layout: Layout,
    router: RouterPlan | None,
    notes: Sequence[str] = (),
) -> ModelPlan:
    """The plan of a model; ``router`` is None where the config states no routed experts."""
    layers = config.num_hidden_layers
    spelling = config.rope_spelling(
        default_theta=1e4,
        width=config.qk_rope_head_dim,
        width_key="qk_rope_head_dim",
        layout=layout,
        dynamic_ntk=options.dynamic_ntk,
    )
    scaling = spelling.single.scaling
    attention = config.latent_attention(
        softmax_factor=scaling.softmax_factor if isinstance(scaling, YarnScaling) else 1.0,
        norm=LATENT_NORM,
        form=options.mla,
    )
    dense, sparse = config.gated_mlp(bias=config.mlp_bias), _experts(config, router)
    return config.model_plan(
        family,
        norm=NormPlan("rms", config.rms_norm_eps),
        layers=[
            LayerPlan(attention, sparse if sparse and _has_experts(config, layer) else dense)
            for layer in range(layers)
        ],
        mask=MaskPlan.dense(layers),
        rope=RopePlan.single(spelling.single, layers),
        cache=config.latent_cache(),
        notes=(*spelling.notes, *notes, *_differences(config, router, scaling)),
    )


def _differences(config: DeepSeekKeys, router: RouterPlan | None, scaling: Scaling) -> Iterator[str]:
    """What transformers (5.23) makes of a file otherwise."""
    if router is not None and config.moe_layer_freq != 1:
        yield (
            f"moe_layer_freq is {config.moe_layer_freq}: of the layers from "
            f"{config.first_k_dense_replace} on those that it divides have experts (transformers would give "
            "them to all)"
        )
    for key, recipe in config.rope_recipes().items():
        stated = [name for name in ("mscale", "mscale_all_dim") if recipe.get(name)]
        if not isinstance(scaling, YarnScaling) or len(stated) != 1 or scaling.attention_factor is not None:
            continue
        (ours,), theirs = scaling.magnitudes, yarn_magnitude(scaling.factor, 1.0)
        if abs(ours - theirs) > 1e-9:
            yield (
                f"{key} states {stated[0]} alone: cos and sin are multiplied by {ours:.6g}, as in DeepSeek's "
                f"own code (transformers would take {theirs:.6g})"
            )


def router_plan(
    config: DeepSeekKeys,
    *,
    scoring: Literal["softmax", "sigmoid"],
    group_score: Literal["max", "top2"] | None,
    correction_bias: bool,
    normalise: bool,
    scale: float,
) -> RouterPlan | None:
    """The recipe of the config's routed experts, None without any.

    Raises:
        ConfigError: more experts or groups are to be chosen than there are.
    """
    if not config.n_routed_experts or config.num_experts_per_tok is None:
        return None
    limited = group_score is not None
    if limited and (config.n_group is None or config.topk_group is None):
        raise ConfigError(
            f"experts are chosen by groups, and n_group is {config.n_group}, topk_group {config.topk_group}; "
            "state both (1 and 1 for no limit)"
        )
    groups = (config.n_group or 1) if limited else 1
    try:
        return RouterPlan(
            experts=config.n_routed_experts,
            chosen=config.num_experts_per_tok,
            scoring=scoring,
            groups=groups,
            groups_chosen=(config.topk_group or 1) if limited else 1,
            group_score=group_score,
            correction_bias=correction_bias,
            normalise=normalise,
            scale=scale,
        )
    except PlanError as error:
        raise ConfigError(
            f"n_routed_experts ({config.n_routed_experts}), num_experts_per_tok "
            f"({config.num_experts_per_tok}), n_group ({config.n_group}) and topk_group "
            f"({config.topk_group}) do not fit together: {error}"
        ) from error


def _has_experts(config: DeepSeekKeys, layer: int) -> bool:
    return layer >= config.first_k_dense_replace and layer % config.moe_layer_freq == 0


def _experts(config: DeepSeekKeys, router: RouterPlan | None) -> MoEPlan | None:
    width = config.moe_intermediate_size
    if router is None or width is None:
        return None
    shared = config.gated_mlp(bias=config.mlp_bias, width=width * (config.n_shared_experts or 0))
    return MoEPlan(
        router=router,
        expert_width=width,
        activation=config.hidden_act,
        shared=shared if config.n_shared_experts else None,
        shared_gate=False,
    )


_MIXER, _SHARED = "layers.{layer}.mixer", "layers.{layer}.feed_forward.shared"
_ATTENTION = "model.layers.{layer}.self_attn"

WEIGHTS = WeightNames(
    modules={
        **LLAMA_NAMES,
        **EXPERT_NAMES,
        f"{_MIXER}.q": f"{_ATTENTION}.q_proj",
        f"{_MIXER}.q.a": f"{_ATTENTION}.q_a_proj",
        f"{_MIXER}.q.norm": f"{_ATTENTION}.q_a_layernorm",
        f"{_MIXER}.q.b": f"{_ATTENTION}.q_b_proj",
        f"{_MIXER}.kv_a": f"{_ATTENTION}.kv_a_proj_with_mqa",
        f"{_MIXER}.kv_norm": f"{_ATTENTION}.kv_a_layernorm",
        f"{_MIXER}.kv_b": f"{_ATTENTION}.kv_b_proj",
        f"{_SHARED}.gate_up": "model.layers.{layer}.mlp.shared_experts.{part}_proj",
        f"{_SHARED}.down": "model.layers.{layer}.mlp.shared_experts.down_proj",
    },
    # layers that predict tokens further ahead, stored after the model's own
    excused=("model.layers.{further}.*",),
)
