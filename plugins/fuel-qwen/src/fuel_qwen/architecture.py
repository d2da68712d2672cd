"""What all Qwen families share: grouped queries, RMS norms, SwiGLU, one RoPE recipe, optional windows.

Source: Qwen2 and Qwen3 Technical Reports (arXiv:2407.10671, arXiv:2505.09388) and the published configs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from pydantic import PositiveFloat

from fuel_core.config import AttentionKeys, GatedMLPKeys, RopeKeys, RopeOptions
from fuel_core.plans import AttentionPlan, GatedMLPPlan, LayerPlan, ModelPlan, MoEPlan, NormPlan, RopePlan
from fuel_qwen.windows import TransformersRule, WindowKeys, WindowLayers, window_plan

QK_NORM_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "layers.{layer}.mixer.q_norm": "model.layers.{layer}.self_attn.q_norm",
        "layers.{layer}.mixer.k_norm": "model.layers.{layer}.self_attn.k_norm",
    }
)


class QwenKeys(AttentionKeys, RopeKeys, GatedMLPKeys, WindowKeys):
    """The keys that all families read."""

    irrelevant: ClassVar = {"use_mrope": (False,)}

    rms_norm_eps: PositiveFloat = 1e-6

    @property
    def norm(self) -> NormPlan:
        """Of the residual stream, and of q and k where a family normalises them."""
        return NormPlan("rms", self.rms_norm_eps)


class Qwen3Keys(QwenKeys):
    """What Qwen3 adds: ``attention_bias`` puts biases on q, k, v and the output, q and k have norms."""

    attention_bias: bool = False

    def normalised_attention(self) -> AttentionPlan:
        bias = self.attention_bias
        return self.attention(qkv_bias=bias, out_bias=bias, qk_norm=self.norm)


@dataclass(frozen=True, kw_only=True)
class QwenOptions(RopeOptions):
    """What a user may choose at load.

    Attributes:
        window_layers: which layers slide when ``max_window_layers`` is N and ``layer_types`` is
            absent: the ``first`` N (Qwen's documentation), or all after them (``last``; transformers, in the
            dense families).
        absent_rope_theta: the RoPE base when config.json states none (transformers: 1e4).
    """

    window_layers: WindowLayers = "first"
    absent_rope_theta: float = 1e6


def decoder_plan(
    family: str,
    config: QwenKeys,
    options: QwenOptions,
    *,
    attention: AttentionPlan,
    feed_forwards: Sequence[GatedMLPPlan | MoEPlan],
    transformers: TransformersRule,
) -> ModelPlan:
    """The plan of a model: one attention in every layer, a feed-forward block for each.

    Args:
        transformers: how that library reads the family's windows, for the notes.
    """
    layers = config.num_hidden_layers
    rope = config.rope_spelling(
        default_theta=options.absent_rope_theta, width=config.head_dim, dynamic_ntk=options.dynamic_ntk
    )
    mask, window_notes = window_plan(config, options.window_layers, transformers)
    notes = list(rope.notes)
    if not rope.theta_stated:
        notes.append(
            f"rope_theta is absent: {options.absent_rope_theta:g} is used (transformers would take 1e4); "
            "choose with the option absent_rope_theta"
        )
    return config.model_plan(
        family,
        norm=config.norm,
        layers=[LayerPlan(attention, feed_forward) for feed_forward in feed_forwards],
        mask=mask,
        rope=RopePlan.single(rope.single, layers),
        cache=config.kv_cache(),
        notes=[*notes, *window_notes],
    )
