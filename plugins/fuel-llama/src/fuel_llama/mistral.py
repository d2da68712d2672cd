"""Mistral 7B, Nemo and Small: Llama without biases, with one window for all layers or none.

Source: Mistral 7B (arXiv:2310.06825) and the published configs of Mistral 7B v0.1 to v0.3, Nemo and Small.
"""

from typing import Annotated, Any, ClassVar

from pydantic import Field, PositiveInt

from fuel_core.config import NULL_IS_QUERY_HEADS, RopeOptions
from fuel_core.family import Family, Mutation
from fuel_core.plans import MaskPlan, ModelPlan
from fuel_llama.architecture import WEIGHTS, LlamaLikeKeys, build, decoder_plan
from fuel_llama.tiny import TINY_KEYS


class MistralConfig(LlamaLikeKeys):
    """The keys of a Mistral config.json.

    ``sliding_window`` is the number of keys that a query sees, itself among them: 4096 when absent, no
    window when null or 0. Absent, ``num_key_value_heads`` is 8.
    """

    irrelevant: ClassVar = {"attention_bias": (False,), "mlp_bias": (False,)}

    num_key_value_heads: Annotated[PositiveInt, NULL_IS_QUERY_HEADS] = 8
    sliding_window: Annotated[int, Field(ge=0)] | None = 4096


def plan(config: MistralConfig, options: RopeOptions) -> ModelPlan:
    mask = MaskPlan.per_layer_window(config.num_hidden_layers, config.sliding_window, lambda layer: True)
    return decoder_plan("mistral", config, options, default_theta=1e4, mask=mask)


_TINY: dict[str, Any] = {**TINY_KEYS, "model_type": "mistral", "sliding_window": 7}

TINY = {
    "window": _TINY,
    "dense-tied": {**_TINY, "sliding_window": None, "tie_word_embeddings": True},
    "window-head-dim": {**_TINY, "sliding_window": 5, "head_dim": 12, "num_key_value_heads": 3},
}


def _exclude_the_query(raw: dict[str, Any]) -> dict[str, Any]:
    window = raw["sliding_window"]
    return raw if window is None else {**raw, "sliding_window": window + 1}


MISTRAL = Family(
    name="mistral",
    config=MistralConfig,
    options=RopeOptions,
    plan=plan,
    build=build,
    weights=WEIGHTS,
    tiny=TINY,
    mutations=(
        Mutation(name="the window does not count the query", config=_exclude_the_query),
        Mutation(name="the window is ignored", config=lambda raw: {**raw, "sliding_window": None}),
    ),
)
