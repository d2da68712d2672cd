"""Models for the GPU benchmark: published shapes and tiny ones, with random weights made on the device.

Families are imported by their modules, so that a checkout runs without being installed.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fuel_core.blocks import Decoder, StackedLinear
from fuel_core.family import Family
from fuel_core.plans import MoEPlan, Numerics
from fuel_core.weights.initialise import randomise
from fuel_deepseek.deepseek_v2 import DEEPSEEK_V2
from fuel_llama.llama import LLAMA
from fuel_qwen.qwen2 import QWEN2
from fuel_qwen.qwen3_moe import QWEN3_MOE

FAMILIES: Mapping[str, Family] = {family.name: family for family in (QWEN2, LLAMA, DEEPSEEK_V2, QWEN3_MOE)}

TINY = (("qwen2", "mixed-window"), ("llama", "llama3"), ("deepseek_v2", "yarn"), ("qwen3_moe", "plain"))
"""Family and tiny config: windows and biases, scaled RoPE, latents with experts, normalised q and k."""

_MATRIX_STD = 0.02


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A published model.

    Attributes:
        raw: its config.json, as far as a model is built from it.
        target: the share of copy bandwidth that its decode step is to reach at 128 tokens held.
    """

    name: str
    raw: Mapping[str, Any]
    target: float | None


_LLAMA_3: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 128_256,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
}
_LLAMA_3_SCALING: dict[str, Any] = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}

SHAPES = (
    Shape(
        name="qwen2-0.5b",
        target=0.50,
        raw={
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
            "hidden_act": "silu",
            "tie_word_embeddings": True,
        },
    ),
    Shape(
        name="llama-3.2-1b",
        target=0.60,
        raw={
            **_LLAMA_3,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 16,
            "head_dim": 64,
            "rope_scaling": {**_LLAMA_3_SCALING, "factor": 32.0},
            "tie_word_embeddings": True,
        },
    ),
    Shape(
        name="llama-3.1-8b",
        target=0.80,
        raw={
            **_LLAMA_3,
            "hidden_size": 4096,
            "intermediate_size": 14_336,
            "num_hidden_layers": 32,
            "rope_scaling": {**_LLAMA_3_SCALING, "factor": 8.0},
            "tie_word_embeddings": False,
        },
    ),
    Shape(
        name="deepseek-v2-lite",
        target=None,
        raw={
            "model_type": "deepseek_v2",
            "vocab_size": 102_400,
            "hidden_size": 2048,
            "intermediate_size": 10_944,
            "moe_intermediate_size": 1408,
            "num_hidden_layers": 27,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "max_position_embeddings": 163_840,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10_000.0,
            "rope_scaling": {
                "type": "yarn",
                "factor": 40,
                "beta_fast": 32,
                "beta_slow": 1,
                "mscale": 0.707,
                "mscale_all_dim": 0.707,
                "original_max_position_embeddings": 4096,
            },
            "hidden_act": "silu",
            "attention_bias": False,
            "tie_word_embeddings": False,
            "q_lora_rank": None,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "first_k_dense_replace": 1,
            "moe_layer_freq": 1,
            "n_routed_experts": 64,
            "n_shared_experts": 2,
            "num_experts_per_tok": 6,
            "n_group": 1,
            "topk_group": 1,
            "topk_method": "greedy",
            "scoring_func": "softmax",
            "norm_topk_prob": False,
            "routed_scaling_factor": 1.0,
        },
    ),
    Shape(
        name="qwen3-30b-a3b",
        target=None,
        raw={
            "model_type": "qwen3_moe",
            "vocab_size": 151_936,
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "moe_intermediate_size": 768,
            "num_hidden_layers": 48,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "max_position_embeddings": 40_960,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1_000_000.0,
            "hidden_act": "silu",
            "attention_bias": False,
            "tie_word_embeddings": False,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "use_sliding_window": False,
        },
    ),
)
"""Values of the published config.json files. Qwen2-0.5B's context is that of its instruct model."""


def tiny_decoder(
    family: str, tiny: str, device: torch.device, dtype: torch.dtype, *, seed: int = 0, positions: int = 2048
) -> Decoder:
    """A tiny model whose every part matters in its logits; equal seeds give equal weights everywhere."""
    raw = {**FAMILIES[family].tiny[tiny], "max_position_embeddings": positions}
    decoder = on_meta(raw, dtype)
    randomise(decoder, torch.Generator().manual_seed(seed))
    return decoder.requires_grad_(False).to(device).eval()


def shape_decoder(shape: Shape, device: torch.device, dtype: torch.dtype) -> Decoder:
    """A model with weights of no meaning, drawn on the device: through the host 30 billion take minutes.

    Matrices are narrow normals, norms 1, biases 0. What writes into the residual stream is narrower with
    depth, so that no activation overflows.
    """
    decoder = on_meta(shape.raw, dtype)
    draw = torch.Generator(device).manual_seed(0)
    narrow = 1 / math.sqrt(2 * len(decoder.layers))
    for parameter in _parameters(decoder):
        value = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
        if value.dim() > 1:
            residual = parameter.path.endswith((".out", ".down"))
            value.normal_(0, _MATRIX_STD * (narrow if residual else 1.0), generator=draw)
        else:
            value.fill_(0.0 if parameter.name.endswith("bias") else 1.0)
        setattr(parameter.module, parameter.name, nn.Parameter(value, requires_grad=False))
    decoder.weights_replaced()
    return decoder.eval()


def step_weight_bytes(decoder: Decoder) -> int:
    """Bytes of weights that a decode step of one row reads, of a model on any device, meta too: all once,
    but one row of an untied embedding table, and of routed experts the chosen ones."""
    total = 0
    for parameter in _parameters(decoder):
        if parameter.module is decoder.embed and decoder.head is not None:
            continue
        size = parameter.shape.numel() * parameter.dtype.itemsize
        if isinstance(parameter.module, StackedLinear):
            feed_forward = decoder.plan.layers[int(parameter.path.split(".")[1])].feed_forward
            assert isinstance(feed_forward, MoEPlan), f"{parameter.path} stacks experts, the plan has none"
            size = size * feed_forward.router.chosen // feed_forward.router.experts
        total += size
    return total


def on_meta(raw: Mapping[str, Any], dtype: torch.dtype) -> Decoder:
    """The model of a config, without memory."""
    family = FAMILIES[str(raw["model_type"])]
    config, _ = family.config.read(raw, source="benchmark")
    numerics = Numerics(weights=dtype, activations=dtype, cache=dtype)
    with torch.device("meta"):
        return family.build(config, family.plan(config, family.options()).with_numerics(numerics))


@dataclass(frozen=True, kw_only=True)
class _Parameter:
    path: str
    module: nn.Module
    name: str
    shape: torch.Size
    dtype: torch.dtype


def _parameters(decoder: Decoder) -> list[_Parameter]:
    """Every parameter, with the dtype that its block's rule holds it in."""
    return [
        _Parameter(
            path=path,
            module=module,
            name=name,
            shape=parameter.shape,
            dtype=module.weight_rules[name].dtype(decoder.plan.numerics.weights),
        )
        for path, module in decoder.named_modules()
        for name, parameter in module.named_parameters(recurse=False)
    ]
