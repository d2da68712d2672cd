"""What a user may choose at load of every family whose RoPE keys may state dynamic NTK."""

from dataclasses import dataclass
from typing import Literal

DynamicNTK = Literal["refused", "frozen"]
"""What happens beyond the trained length of a model with dynamic NTK."""


@dataclass(frozen=True, kw_only=True)
class RopeOptions:
    """The options of a family without others; one with more inherits these.

    Attributes:
        dynamic_ntk: the published rule of dynamic NTK gives every length a base of its own, which
            contradicts keys cached under another. ``refused`` is plain RoPE that ends at the trained
            length; ``frozen`` is the base of the longest sequence that config.json speaks of, at every
            length.
    """

    dynamic_ntk: DynamicNTK = "refused"
