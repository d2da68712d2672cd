"""Giving a model that was built on the meta device real parameters without a checkpoint."""

import math

import torch
from torch import nn

from fuel_core.blocks.decoder import Decoder
from fuel_core.blocks.embedding import Embedding
from fuel_core.blocks.rules import WeightRule


def initialise(decoder: Decoder, generator: torch.Generator, *, std: float = 0.02) -> None:
    """Fill a meta model for training, on the CPU: norms 1, biases 0, matrices normal.

    Matrices that write into the residual stream are narrower by the square root of twice the number
    of layers, so that the stream's variance does not grow with depth (GPT-2's rule).

    Args:
        generator: the CPU generator that draws; the result depends on it alone.
        std: standard deviation of matrices and embeddings.
    """
    residual = 1 / math.sqrt(2 * len(decoder.layers))
    for path, module, name, shape, dtype in _parameters(decoder):
        if len(shape) > 1:
            narrow = residual if path.endswith((".out", ".down")) else 1.0
            value = torch.empty(shape, device="cpu").normal_(0, std * narrow, generator=generator)
        else:
            value = torch.full(shape, 0.0 if name.endswith("bias") else 1.0, device="cpu")
        setattr(module, name, nn.Parameter(value.to(dtype)))
    decoder.weights_replaced()


def randomise(decoder: Decoder, generator: torch.Generator) -> None:
    """Fill a meta model for tests, so that every part matters in its logits: matrices of standard
    deviation 1.6 / sqrt(inputs), norms around 1, biases of 0.3, embeddings of 1."""
    for _, module, name, shape, dtype in _parameters(decoder):
        noise = torch.empty(shape, device="cpu").normal_(0, 1, generator=generator)
        if isinstance(module, Embedding):
            value = noise
        elif len(shape) > 1:
            value = noise * 1.6 / math.sqrt(shape[-1])
        else:
            value = 0.3 * noise + (0.0 if name.endswith("bias") else 1.0)
        setattr(module, name, nn.Parameter(value.to(dtype), requires_grad=False))
    decoder.weights_replaced()


def _parameters(
    decoder: Decoder,
) -> list[tuple[str, nn.Module, str, torch.Size, torch.dtype]]:
    """Every parameter's module path, module, name, shape and the dtype that it is held in."""
    found = []
    for path, module in decoder.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            rule: WeightRule = module.weight_rules[name]
            dtype = rule.dtype(decoder.plan.numerics.weights)
            found.append((path, module, name, parameter.shape, dtype))
    return found
