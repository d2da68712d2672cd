"""What the smallest models of both families share, and the faults that their tests must see."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fuel_core.blocks import Decoder, LatentAttention, RMSNorm
from fuel_core.family import Mutation
from fuel_core.plans import LatentAttentionPlan

TINY_KEYS: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-3,
    "rope_theta": 31.0,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "n_routed_experts": 12,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 20,
    "routed_scaling_factor": 2.0,
}

TINY_YARN: dict[str, Any] = {
    "type": "yarn",
    "factor": 8.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 0.707,
    "mscale_all_dim": 0.9,
}


def _of_every_mixer(
    change: Callable[[LatentAttentionPlan], LatentAttentionPlan],
) -> Callable[[Decoder], None]:
    def decoder(decoder: Decoder) -> None:
        for module in decoder.modules():
            if isinstance(module, LatentAttention):
                module.plan = change(module.plan)

    return decoder


def _norm_latents_as_layers(decoder: Decoder) -> None:
    for module in decoder.modules():
        if isinstance(module, LatentAttention) and isinstance(module.kv_norm, RMSNorm):
            module.kv_norm.eps = decoder.plan.norm.eps


MUTATIONS = (
    Mutation(
        name="the scores are scaled by the width of a cache entry",
        decoder=_of_every_mixer(lambda plan: replace(plan, scale=(plan.kv_rank + plan.rope_dim) ** -0.5)),
    ),
    Mutation(
        name="the latents are normalised with rms_norm_eps",
        decoder=_norm_latents_as_layers,
    ),
    Mutation(
        name="YaRN's second correction is forgotten",
        config=lambda raw: (
            {**raw, "rope_scaling": {**TINY_YARN, "mscale": 0.0, "mscale_all_dim": 0.0}}
            if "rope_scaling" in raw
            else raw
        ),
    ),
)
