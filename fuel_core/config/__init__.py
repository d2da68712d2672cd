"""Reading config.json: every key is understood, known to be irrelevant, or refused."""

from fuel_core.config.attention import AttentionKeys
from fuel_core.config.family_config import NULL_IS_ABSENT, FamilyConfig
from fuel_core.config.json_file import read_json_object
from fuel_core.config.ledger import ANY_VALUE, Fate, Ledger, LedgerEntry
from fuel_core.config.rope import RopeKeys, RopeSpelling

__all__ = [
    "ANY_VALUE",
    "NULL_IS_ABSENT",
    "AttentionKeys",
    "FamilyConfig",
    "Fate",
    "Ledger",
    "LedgerEntry",
    "RopeKeys",
    "RopeSpelling",
    "read_json_object",
]
