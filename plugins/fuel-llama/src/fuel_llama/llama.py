"""Llama 1 to 3.3 and the many models of its architecture: TinyLlama, SmolLM 1 and 2, Yi and others.

Source: LLaMA (arXiv:2302.13971), The Llama 3 Herd of Models (arXiv:2407.21783) and the published configs of
Llama 2 to 3.3, TinyLlama, SmolLM2 and Yi.
"""

from dataclasses import replace
from typing import Annotated, Any, ClassVar

from pydantic import PositiveInt

from fuel_core.config import ANY_VALUE, NULL_IS_ABSENT, RopeOptions
from fuel_core.family import Family, Mutation
from fuel_core.plans import LinearScaling, MaskPlan, ModelPlan
from fuel_llama.architecture import WEIGHTS, BiasedKeys, build, decoder_plan
from fuel_llama.tiny import TINY_KEYS


class LlamaConfig(BiasedKeys):
    """The keys of a Llama config.json.

    ``max_sequence_length`` stands in files of Llama 1, and where linear scaling stretches
    ``max_position_embeddings`` to it.
    """

    irrelevant: ClassVar = {
        "is_llama_config": ANY_VALUE,
        "rope_interleaved": (False,),
        "transformers.js_config": ANY_VALUE,
    }

    max_sequence_length: Annotated[PositiveInt | None, NULL_IS_ABSENT] = None


def plan(config: LlamaConfig, options: RopeOptions) -> ModelPlan:
    made = decoder_plan(
        "llama",
        config,
        options,
        default_theta=1e4,
        mask=MaskPlan.dense(config.num_hidden_layers),
        attention_bias=config.attention_bias,
        mlp_bias=config.mlp_bias,
    )
    reach, scaling = config.max_sequence_length or 0, made.rope.variants[0].scaling
    if reach <= config.max_position_embeddings:
        return made
    if isinstance(scaling, LinearScaling) and reach <= scaling.factor * config.max_position_embeddings:
        return replace(made, max_positions=reach)
    note = (
        f"max_sequence_length ({reach}) is passed over: nothing stretches max_position_embeddings "
        f"({config.max_position_embeddings}) to it"
    )
    return replace(made, notes=(*made.notes, note))


_TINY: dict[str, Any] = {
    **TINY_KEYS,
    "model_type": "llama",
    "attention_bias": False,
    "mlp_bias": False,
}
_LLAMA3: dict[str, Any] = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}

TINY = {
    "plain": _TINY,
    "tied-mqa": {**_TINY, "tie_word_embeddings": True, "num_key_value_heads": 1, "hidden_act": "gelu"},
    "biased-head-dim": {**_TINY, "attention_bias": True, "mlp_bias": True, "head_dim": 12},
    "linear": {**_TINY, "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "llama3": {**_TINY, "head_dim": 64, "rope_scaling": _LLAMA3},
}


def _ignore_scaling(raw: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in raw.items() if key != "rope_scaling"}


def _scale_every_wavelength(raw: dict[str, Any]) -> dict[str, Any]:
    if raw.get("rope_scaling") != _LLAMA3:
        return raw
    return {**raw, "rope_scaling": {"rope_type": "linear", "factor": _LLAMA3["factor"]}}


LLAMA = Family(
    name="llama",
    config=LlamaConfig,
    options=RopeOptions,
    plan=plan,
    build=build,
    weights=WEIGHTS,
    tiny=TINY,
    mutations=(
        Mutation(name="rope_theta is ignored", config=lambda raw: {**raw, "rope_theta": 1e4}),
        Mutation(name="rms_norm_eps is ignored", config=lambda raw: {**raw, "rms_norm_eps": 1e-6}),
        Mutation(name="rope_scaling is ignored", config=_ignore_scaling),
        Mutation(name="llama3 scales every wavelength", config=_scale_every_wavelength),
    ),
)
