"""How a parameter is made of checkpoint tensors, and back: one rule, read in both directions."""

from collections.abc import Mapping, Set
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Piece:
    """One checkpoint tensor's place in a parameter.

    Attributes:
        fields: what the family's name template puts for its placeholders.
        place: the index of the tensor in the parameter; empty when the tensor is the whole.
    """

    fields: Mapping[str, str]
    place: tuple[int | slice, ...]


@dataclass(frozen=True)
class WeightRule:
    """How one parameter is stored.

    Attributes:
        parts: name -> rows, in the parameter's order, for a parameter whose rows checkpoints may store
            as several tensors, ``{part}`` in a name template; empty when they never do.
        full_precision: kept in at least float32 whatever the dtype of the weights.
        experts: the leading dimension of a parameter that stacks experts, each of which checkpoints
            may store by itself, ``{expert}`` in a name template; None when it stacks none.
        trained: False where no gradient arrives, as at a bias that only chooses.
    """

    parts: Mapping[str, int]
    full_precision: bool
    experts: int | None = None
    trained: bool = True

    def pieces(self, placeholders: Set[str]) -> tuple[Piece, ...]:
        """The tensors of this parameter, given what a name template tells apart."""
        pieces = [Piece({}, ())]
        if self.experts is not None:
            if "expert" in placeholders:
                pieces = [Piece({"expert": str(expert)}, (expert,)) for expert in range(self.experts)]
            else:
                pieces = [Piece({}, (slice(None),))]
        if "part" in placeholders:
            pieces = [
                Piece({**piece.fields, "part": part}, (*piece.place, rows))
                for piece in pieces
                for part, rows in self._rows().items()
            ]
        return tuple(pieces)

    def _rows(self) -> dict[str, slice]:
        rows, start = {}, 0
        for part, count in self.parts.items():
            rows[part] = slice(start, start + count)
            start += count
        return rows

    def dtype(self, weights: torch.dtype) -> torch.dtype:
        """The dtype in which this parameter is held when the weights are held in ``weights``."""
        return torch.promote_types(weights, torch.float32) if self.full_precision else weights


WHOLE = WeightRule({}, full_precision=False)
"""A matrix that is one tensor everywhere."""

VECTOR = WeightRule({}, full_precision=True)
"""A norm's weight or a bias: small, and applied in at least float32."""
