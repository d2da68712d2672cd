"""The keys of attention geometry, read one way for every family."""

from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, PositiveInt, ValidationInfo, model_validator

from fuel_core.config.family_config import NULL_IS_ABSENT, FamilyConfig
from fuel_core.plans.cache_spec import CacheSpec, KVSlots
from fuel_core.plans.model_plan import AttentionPlan, NormPlan


def _derived_head_dim(known: dict[str, Any]) -> int:
    hidden_size, heads = known["hidden_size"], known["num_attention_heads"]
    if hidden_size % heads:
        raise ValueError(
            f"head_dim is absent and hidden_size ({hidden_size}) is no multiple of "
            f"num_attention_heads ({heads})"
        )
    return int(hidden_size // heads)


def _null_is_query_heads(value: object, info: ValidationInfo) -> object:
    return info.data.get("num_attention_heads") if value is None else value


NULL_IS_QUERY_HEADS = BeforeValidator(_null_is_query_heads)
"""Annotates a ``num_key_value_heads`` whose absence is a number of the family's and whose null is one for
each query head."""


class AttentionKeys(FamilyConfig):
    """Query heads, key/value heads and the size of a head.

    An explicit ``head_dim`` beats the division of ``hidden_size`` by the heads, which need not even
    divide it then. Absent or null: ``num_key_value_heads`` is the number of query heads,
    ``head_dim`` the quotient. One key/value head is multi-query attention and stays one.
    """

    num_attention_heads: PositiveInt
    num_key_value_heads: Annotated[PositiveInt, NULL_IS_ABSENT] = Field(
        default_factory=lambda known: known["num_attention_heads"]
    )
    head_dim: Annotated[PositiveInt, NULL_IS_ABSENT] = Field(default_factory=_derived_head_dim)

    @model_validator(mode="after")
    def _check_groups(self) -> Self:
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads ({self.num_attention_heads}) is no multiple of "
                f"num_key_value_heads ({self.num_key_value_heads})"
            )
        return self

    def attention(self, *, qkv_bias: bool, out_bias: bool, qk_norm: NormPlan | None = None) -> AttentionPlan:
        """Grouped-query attention of this geometry, its scores scaled by the root of ``head_dim``."""
        return AttentionPlan(
            query_heads=self.num_attention_heads,
            kv_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            scale=self.head_dim**-0.5,
            qkv_bias=qkv_bias,
            out_bias=out_bias,
            qk_norm=qk_norm,
        )

    def kv_cache(self) -> CacheSpec:
        """Keys and values of this geometry in every layer."""
        return CacheSpec.uniform(KVSlots(self.num_key_value_heads, self.head_dim), self.num_hidden_layers)
