"""How a parameter is made of checkpoint tensors, and back: one rule, read in both directions."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Piece:
    """One checkpoint tensor's place in a parameter.

    Attributes:
        part: what the family's name template puts for ``{part}``; None when the tensor is the whole.
        rows: its rows in the parameter.
    """

    part: str | None
    rows: slice


@dataclass(frozen=True)
class WeightRule:
    """How one parameter is stored.

    Attributes:
        parts: name -> rows, in the parameter's order, for a parameter that checkpoints may store as
            several tensors; empty when they never do.
        full_precision: kept in at least float32 whatever the dtype of the weights.
    """

    parts: Mapping[str, int]
    full_precision: bool

    def pieces(self, fused: bool) -> tuple[Piece, ...]:
        """The tensors of this parameter; ``fused`` when the checkpoint stores it as one."""
        if fused:
            return (Piece(None, slice(None)),)
        pieces, start = [], 0
        for part, rows in self.parts.items():
            pieces.append(Piece(part, slice(start, start + rows)))
            start += rows
        return tuple(pieces)

    def dtype(self, weights: torch.dtype) -> torch.dtype:
        """The dtype in which this parameter is held when the weights are held in ``weights``."""
        return torch.promote_types(weights, torch.float32) if self.full_precision else weights


WHOLE = WeightRule({}, full_precision=False)
"""A matrix that is one tensor everywhere."""

VECTOR = WeightRule({}, full_precision=True)
"""A norm's weight or a bias: small, and applied in at least float32."""
