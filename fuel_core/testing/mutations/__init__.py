"""Faults of the core that a family's tests must see, in every family that uses the part.

Each is applied with monkeypatch to the one function that owns what it breaks.
"""

from fuel_core.testing.mutations.attention import ATTENTION_MUTATIONS
from fuel_core.testing.mutations.blocks import BLOCKS_MUTATIONS
from fuel_core.testing.mutations.decoding import DECODING_MUTATIONS
from fuel_core.testing.mutations.experts import EXPERTS_MUTATIONS
from fuel_core.testing.mutations.mutation import CoreMutation, Patch
from fuel_core.testing.mutations.rotary import ROTARY_MUTATIONS

CORE_MUTATIONS = (
    *ROTARY_MUTATIONS,
    *ATTENTION_MUTATIONS,
    *DECODING_MUTATIONS,
    *BLOCKS_MUTATIONS,
    *EXPERTS_MUTATIONS,
)

__all__ = ["CORE_MUTATIONS", "CoreMutation", "Patch"]
