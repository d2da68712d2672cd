"""The usual decoder, assembled from what a plan says of each layer."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from torch import nn

from fuel_core.blocks.attention import Attention
from fuel_core.blocks.decoder import Decoder
from fuel_core.blocks.experts import moe
from fuel_core.blocks.latent_attention import LatentAttention
from fuel_core.blocks.layer import PreNormLayer
from fuel_core.blocks.mlp import GatedMLP
from fuel_core.blocks.norm import normalisation
from fuel_core.plans.model_plan import AttentionPlan, GatedMLPPlan, LatentAttentionPlan, ModelPlan
from fuel_core.plans.moe_plan import MoEPlan

Part = Callable[[int, Any], nn.Module]
"""(hidden_size, plan of the part) -> its block."""

_PARTS: Mapping[type, Part] = MappingProxyType(
    {AttentionPlan: Attention, LatentAttentionPlan: LatentAttention, GatedMLPPlan: GatedMLP, MoEPlan: moe}
)


def pre_norm_decoder(plan: ModelPlan, parts: Mapping[type, Part] = MappingProxyType({})) -> Decoder:
    """Build layers of :class:`PreNormLayer`, each of the mixer and the feed-forward block of its plan.

    Args:
        parts: plan type -> block, for parts of a family's own; they go before the core's.
    """
    known = {**_PARTS, **parts}

    def part(description: Any) -> nn.Module:
        return known[type(description)](plan.hidden_size, description)

    return Decoder(
        plan,
        layers=[
            PreNormLayer(
                mixer_norm=normalisation(plan.hidden_size, plan.norm),
                mixer=part(layer.mixer),
                feed_forward_norm=normalisation(plan.hidden_size, plan.norm),
                feed_forward=part(layer.feed_forward),
            )
            for layer in plan.layers
        ],
    )
