"""What the families of this plugin share: attention and a gated MLP, each after an RMS norm.

Source: LLaMA (arXiv:2302.13971) and the published configs and weights of the models that follow it.
"""

from collections.abc import Sequence

from pydantic import PositiveFloat

from fuel_core.blocks import Decoder, pre_norm_decoder
from fuel_core.config import AttentionKeys, GatedMLPKeys, RopeKeys, RopeOptions
from fuel_core.family import LLAMA_NAMES, WeightNames
from fuel_core.plans import LayerPlan, MaskPlan, ModelPlan, NormPlan, RopePlan


class LlamaLikeKeys(AttentionKeys, RopeKeys, GatedMLPKeys):
    """The keys of all three."""

    rms_norm_eps: PositiveFloat = 1e-6


class BiasedKeys(LlamaLikeKeys):
    """``attention_bias`` puts biases on q, k, v and the output, ``mlp_bias`` on gate, up and down."""

    attention_bias: bool = False
    mlp_bias: bool = False


def decoder_plan(
    family: str,
    config: LlamaLikeKeys,
    options: RopeOptions,
    *,
    default_theta: float,
    mask: MaskPlan,
    rotates: Sequence[bool] | None = None,
    attention_bias: bool = False,
    mlp_bias: bool = False,
    notes: Sequence[str] = (),
) -> ModelPlan:
    """The plan of a model of equal layers.

    Args:
        default_theta: the RoPE base when the file states none.
        mask: the windows.
        rotates: whether each layer has RoPE; None when all have.
        attention_bias, mlp_bias: on all projections of the block.
        notes: what the family decided, after what the RoPE keys gave rise to.
    """
    layers = config.num_hidden_layers
    rope = config.rope_spelling(
        default_theta=default_theta, width=config.head_dim, dynamic_ntk=options.dynamic_ntk
    )
    rotates = [True] * layers if rotates is None else rotates
    attention = config.attention(qkv_bias=attention_bias, out_bias=attention_bias)
    return config.model_plan(
        family,
        norm=NormPlan("rms", config.rms_norm_eps),
        layers=[LayerPlan(attention, config.gated_mlp(bias=mlp_bias))] * layers,
        mask=mask,
        rope=RopePlan(
            (rope.single,) if any(rotates) else (), tuple(0 if rotated else None for rotated in rotates)
        ),
        cache=config.kv_cache(),
        notes=(*rope.notes, *notes),
    )


def build(config: LlamaLikeKeys, plan: ModelPlan) -> Decoder:
    return pre_norm_decoder(plan)


WEIGHTS = WeightNames(modules=LLAMA_NAMES, excused=())
