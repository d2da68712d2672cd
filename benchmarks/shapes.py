"""Published model shapes with random weights, made on the spot."""

from pathlib import Path

import torch

from fuel_core.blocks import Decoder
from fuel_core.plans import Numerics
from fuel_core.registry import Registry
from fuel_core.weights.initialise import initialise
from fuel_core.weights.numerics import resolve_numerics

QWEN2_0_5B = {
    "model_type": "qwen2",
    "vocab_size": 151_936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "tie_word_embeddings": True,
}
"""Qwen2-0.5B, as its config.json states it."""


def numerics(dtype: torch.dtype) -> Numerics:
    """How a checkpoint of this dtype would run on this machine's CPU."""
    return resolve_numerics(
        requested=dtype, config=None, stored=dtype, cache=None, device=torch.device("cpu")
    )


def random_decoder(dtype: torch.dtype, raw: dict[str, object] | None = None) -> Decoder:
    """A decoder of a shape, by default Qwen2-0.5B's, with weights of no meaning."""
    raw = raw or QWEN2_0_5B
    family = Registry.discover().family(str(raw["model_type"]))
    config, _ = family.config.read(raw, source="benchmark")
    plan = family.plan(config, family.options()).with_numerics(numerics(dtype))
    with torch.device("meta"):
        decoder = family.build(config, plan)
    initialise(decoder, torch.Generator().manual_seed(0))
    return decoder.requires_grad_(False).eval()


def weight_bytes(decoder: Decoder) -> int:
    """Bytes of weights that one decode step reads: all, but of an untied embedding table one row."""
    skipped = decoder.embed.weight.nbytes if decoder.head is not None else 0
    return sum(parameter.nbytes for parameter in decoder.parameters()) - skipped


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))
