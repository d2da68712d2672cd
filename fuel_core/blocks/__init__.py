"""The parts that a family composes. Each declares beside its parameters how checkpoints store them."""

from fuel_core.blocks.activation import activation
from fuel_core.blocks.attention import Attention
from fuel_core.blocks.decoder import Decoder
from fuel_core.blocks.embedding import Embedding
from fuel_core.blocks.experts import Experts, MoE, StackedLinear, moe
from fuel_core.blocks.latent_attention import LatentAttention
from fuel_core.blocks.layer import ParallelLayer, PreNormLayer
from fuel_core.blocks.linear import FusedLinear, Linear
from fuel_core.blocks.mlp import MLP, GatedMLP
from fuel_core.blocks.norm import LayerNorm, RMSNorm, normalisation
from fuel_core.blocks.pre_norm import pre_norm_decoder
from fuel_core.blocks.router import Router
from fuel_core.blocks.rules import VECTOR, WHOLE, Piece, WeightRule

__all__ = [
    "MLP",
    "VECTOR",
    "WHOLE",
    "Attention",
    "Decoder",
    "Embedding",
    "Experts",
    "FusedLinear",
    "GatedMLP",
    "LatentAttention",
    "LayerNorm",
    "Linear",
    "MoE",
    "ParallelLayer",
    "Piece",
    "PreNormLayer",
    "RMSNorm",
    "Router",
    "StackedLinear",
    "WeightRule",
    "activation",
    "moe",
    "normalisation",
    "pre_norm_decoder",
]
