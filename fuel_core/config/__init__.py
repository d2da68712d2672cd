"""Reading config.json: every key is understood, known to be irrelevant, or refused."""

from fuel_core.config.attention import NULL_IS_QUERY_HEADS, AttentionKeys
from fuel_core.config.family_config import NULL_IS_ABSENT, FamilyConfig
from fuel_core.config.gated_mlp import GatedMLPKeys
from fuel_core.config.json_file import read_json_object
from fuel_core.config.latent_attention import LatentAttentionKeys
from fuel_core.config.ledger import ANY_VALUE, Fate, Ledger, LedgerEntry
from fuel_core.config.moe import EXPERT_TRAINING_KEYS, MoEKeys
from fuel_core.config.partial_rotary import PartialRotaryKeys
from fuel_core.config.rope import RopeKeys, RopeSpelling
from fuel_core.config.rope_options import DynamicNTK, RopeOptions
from fuel_core.config.shown import shown
from fuel_core.config.stored_blocks import StoredBlocks

__all__ = [
    "ANY_VALUE",
    "EXPERT_TRAINING_KEYS",
    "NULL_IS_ABSENT",
    "NULL_IS_QUERY_HEADS",
    "AttentionKeys",
    "DynamicNTK",
    "FamilyConfig",
    "Fate",
    "GatedMLPKeys",
    "LatentAttentionKeys",
    "Ledger",
    "LedgerEntry",
    "MoEKeys",
    "PartialRotaryKeys",
    "RopeKeys",
    "RopeOptions",
    "RopeSpelling",
    "StoredBlocks",
    "read_json_object",
    "shown",
]
