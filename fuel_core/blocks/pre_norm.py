"""The usual decoder, assembled from what a plan says of each layer."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from torch import nn

from fuel_core.blocks.attention import Attention
from fuel_core.blocks.decoder import Decoder
from fuel_core.blocks.experts import moe
from fuel_core.blocks.latent_attention import LatentAttention
from fuel_core.blocks.layer import ParallelLayer, PreNormLayer
from fuel_core.blocks.mlp import MLP, GatedMLP
from fuel_core.blocks.norm import normalisation
from fuel_core.plans.model_plan import (
    AttentionPlan,
    GatedMLPPlan,
    LatentAttentionPlan,
    LayerPlan,
    MLPPlan,
    ModelPlan,
)
from fuel_core.plans.moe_plan import MoEPlan

Part = Callable[[int, Any], nn.Module]
"""(hidden_size, plan of the part) -> its block."""

_PARTS: Mapping[type, Part] = MappingProxyType(
    {
        AttentionPlan: Attention,
        LatentAttentionPlan: LatentAttention,
        GatedMLPPlan: GatedMLP,
        MLPPlan: MLP,
        MoEPlan: moe,
    }
)


def pre_norm_decoder(plan: ModelPlan, parts: Mapping[type, Part] = MappingProxyType({})) -> Decoder:
    """Build each layer of the mixer and the feed-forward block of its plan: a :class:`ParallelLayer` if
    the plan says so, else a :class:`PreNormLayer`.

    Args:
        parts: plan type -> block, for parts of a family's own; they go before the core's.
    """
    known = {**_PARTS, **parts}

    def part(description: Any) -> nn.Module:
        return known[type(description)](plan.hidden_size, description)

    def norm() -> nn.Module:
        return normalisation(plan.hidden_size, plan.norm)

    def layer(parts: LayerPlan) -> nn.Module:
        mixer, feed_forward = part(parts.mixer), part(parts.feed_forward)
        if parts.parallel:
            return ParallelLayer(norm=norm(), mixer=mixer, feed_forward=feed_forward)
        return PreNormLayer(
            mixer_norm=norm(), mixer=mixer, feed_forward_norm=norm(), feed_forward=feed_forward
        )

    return Decoder(plan, layers=[layer(parts) for parts in plan.layers])
