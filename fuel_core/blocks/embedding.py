"""The token embedding table."""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fuel_core.blocks.rules import WHOLE, WeightRule


class Embedding(nn.Module):
    """Rows of a ``[V, M]`` table."""

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, hidden_size))

    @property
    def weight_rules(self) -> Mapping[str, WeightRule]:
        return {"weight": WHOLE}

    def forward(self, token_ids_BT: Tensor) -> Tensor:
        return F.embedding(token_ids_BT, self.weight)
