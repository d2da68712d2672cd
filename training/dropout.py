"""Dropout from outside: hooks before every linear layer, so that no block carries training code.

One mask serves all positions of a window (arXiv:1512.05287). Drawing a mask for each position halves the
speed on a CPU; this costs a sixth.

Letters: B windows, T tokens, N inputs.
"""

from typing import Any

import torch
from torch import Tensor, nn

from fuel_core.blocks.decoder import Decoder
from fuel_core.blocks.linear import Linear


def drop_inputs(decoder: Decoder, share: float) -> None:
    """From now on a linear layer in training mode loses ``share`` of its inputs, others each time."""

    def drop(layer: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if not layer.training:
            return None
        x_BTN: Tensor = inputs[0]
        kept = torch.rand(x_BTN.shape[0], 1, x_BTN.shape[-1], device=x_BTN.device) >= share
        return (x_BTN * (kept.to(x_BTN.dtype) / (1 - share)), *inputs[1:])

    for module in decoder.modules():
        if isinstance(module, Linear):
            module.register_forward_pre_hook(drop)
