"""What the smallest models of the families share, and faults that the tests of several must see."""

from typing import Any

from fuel_core.blocks import Attention, Decoder
from fuel_core.family import Mutation

TINY_KEYS: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-3,
    "rope_theta": 37.0,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "hidden_act": "silu",
}

TINY_EXPERTS: dict[str, Any] = {
    "num_hidden_layers": 2,
    "num_experts": 12,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 20,
    "norm_topk_prob": False,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}

TINY_SPARSE_LAYERS: dict[str, Any] = {
    "num_hidden_layers": 6,
    "decoder_sparse_step": 2,
    "mlp_only_layers": [1],
}
"""Experts in layers 3 and 5 alone."""

TINY_WINDOW: dict[str, Any] = {
    "use_sliding_window": True,
    "sliding_window": 5,
    "layer_types": ["sliding_attention", "full_attention", "full_attention", "sliding_attention"],
}

TINY_YARN: dict[str, Any] = {
    "head_dim": 64,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 32,
    },
}


def attentions(decoder: Decoder) -> list[Attention]:
    return [module for module in decoder.modules() if isinstance(module, Attention)]


def _swap_norms(decoder: Decoder) -> None:
    for attention in attentions(decoder):
        attention.q_norm, attention.k_norm = attention.k_norm, attention.q_norm


def _drop_norms(decoder: Decoder) -> None:
    for attention in attentions(decoder):
        attention.q_norm = attention.k_norm = None


QK_NORM_MUTATIONS = (
    Mutation(name="q is normalised with k's weight, and k with q's", decoder=_swap_norms),
    Mutation(name="q and k are not normalised", decoder=_drop_norms),
)

ROUTER_MUTATIONS = (
    Mutation(
        name="norm_topk_prob is read the other way",
        config=lambda raw: {**raw, "norm_topk_prob": not raw["norm_topk_prob"]},
    ),
    Mutation(
        name="one expert fewer is chosen",
        config=lambda raw: {**raw, "num_experts_per_tok": raw["num_experts_per_tok"] - 1},
    ),
)
