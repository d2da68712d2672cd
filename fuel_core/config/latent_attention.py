"""The keys of multi-head latent attention (MLA), read one way for every family."""

from typing import Annotated, Literal, Self

from pydantic import Field, PositiveInt, model_validator

from fuel_core.config.family_config import NULL_IS_ABSENT, FamilyConfig
from fuel_core.plans.cache_spec import CacheSpec, LatentSlots
from fuel_core.plans.model_plan import LatentAttentionPlan, NormPlan


class LatentAttentionKeys(FamilyConfig):
    """The sizes of MLA under DeepSeek's names.

    Absent, ``q_lora_rank`` is 1536; null or 0, the query has no latent: two models. Every head has a key
    and a value of its own, so ``num_key_value_heads`` can only repeat the number of heads. ``head_dim``
    and ``qk_head_dim`` are written by transformers, whose ``head_dim`` is the rotated part of a head.
    """

    num_attention_heads: PositiveInt
    num_key_value_heads: Annotated[PositiveInt, NULL_IS_ABSENT] = Field(
        default_factory=lambda known: known["num_attention_heads"]
    )
    q_lora_rank: Annotated[int, Field(ge=0)] | None = 1536
    kv_lora_rank: PositiveInt
    qk_nope_head_dim: PositiveInt
    qk_rope_head_dim: PositiveInt
    v_head_dim: PositiveInt
    head_dim: Annotated[PositiveInt | None, NULL_IS_ABSENT] = None
    qk_head_dim: Annotated[PositiveInt | None, NULL_IS_ABSENT] = None
    attention_bias: bool = False

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        nope, rope = self.qk_nope_head_dim, self.qk_rope_head_dim
        if self.num_key_value_heads != self.num_attention_heads:
            raise ValueError(
                f"num_key_value_heads ({self.num_key_value_heads}) is not num_attention_heads "
                f"({self.num_attention_heads}), and latent attention gives each head its own key and value"
            )
        if self.head_dim not in (None, rope):
            raise ValueError(f"head_dim ({self.head_dim}) is not qk_rope_head_dim ({rope})")
        if self.qk_head_dim not in (None, nope + rope):
            raise ValueError(
                f"qk_head_dim ({self.qk_head_dim}) is not qk_nope_head_dim ({nope}) + qk_rope_head_dim "
                f"({rope})"
            )
        return self

    def latent_attention(
        self, *, softmax_factor: float, norm: NormPlan, form: Literal["auto", "absorbed", "expanded"]
    ) -> LatentAttentionPlan:
        """MLA of this geometry. The scale is of a whole query head, never of a cache entry.

        Args:
            softmax_factor: YaRN's second correction, 1 without it.
        """
        head_dim = self.qk_nope_head_dim + self.qk_rope_head_dim
        return LatentAttentionPlan(
            heads=self.num_attention_heads,
            nope_dim=self.qk_nope_head_dim,
            rope_dim=self.qk_rope_head_dim,
            value_dim=self.v_head_dim,
            kv_rank=self.kv_lora_rank,
            q_rank=self.q_lora_rank or None,
            scale=head_dim**-0.5 * softmax_factor,
            norm=norm,
            bias=self.attention_bias,
            form=form,
        )

    def latent_cache(self) -> CacheSpec:
        """One latent and one rotated key a token in every layer."""
        return CacheSpec.uniform(
            LatentSlots(self.kv_lora_rank, self.qk_rope_head_dim), self.num_hidden_layers
        )
