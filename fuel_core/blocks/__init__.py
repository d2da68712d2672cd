"""The parts that a family composes. Each declares beside its parameters how checkpoints store them."""

from fuel_core.blocks.activation import ActivationName, activation
from fuel_core.blocks.attention import Attention
from fuel_core.blocks.decoder import Decoder
from fuel_core.blocks.embedding import Embedding
from fuel_core.blocks.layer import PreNormLayer
from fuel_core.blocks.linear import FusedLinear, Linear, project
from fuel_core.blocks.mlp import GatedMLP
from fuel_core.blocks.norm import RMSNorm
from fuel_core.blocks.rules import VECTOR, WHOLE, Piece, WeightRule

__all__ = [
    "VECTOR",
    "WHOLE",
    "ActivationName",
    "Attention",
    "Decoder",
    "Embedding",
    "FusedLinear",
    "GatedMLP",
    "Linear",
    "Piece",
    "PreNormLayer",
    "RMSNorm",
    "WeightRule",
    "activation",
    "project",
]
