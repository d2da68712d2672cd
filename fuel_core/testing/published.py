"""A published model as its model card and its files state it, and the plan that they must give."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fuel_core.config import Fate
from fuel_core.plans import (
    AttentionPlan,
    CacheSpec,
    KVSlots,
    LayerPlan,
    MaskPlan,
    ModelPlan,
    NormPlan,
    NoScaling,
    RopePlan,
    RopeVariant,
    Scaling,
)
from fuel_core.registry import Registry

_UNSCALED = NoScaling()


@dataclass(frozen=True, kw_only=True)
class PublishedModel:
    """What a published model has to be, written down without its family's code; all layers are alike.

    Attributes:
        family: the family's name; its plugin must be installed.
        layers: their number.
        feed_forward: the plan of each layer's, which a family may have of its own.
        context: the trained context in tokens.
        base: of RoPE.
        stored_dtype: as config.json names it.
        cache_bytes: of a token, at two bytes an element.
        rotary_width: None for the whole head.
        without_rope: layers that are not rotated.
        position_limit: tokens that a sequence may have; None for the trained context.
        switch_length: the length after which LongRoPE changes its table.
    """

    family: str
    vocab_size: int
    hidden_size: int
    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int
    feed_forward: Any
    norm: NormPlan
    context: int
    base: float
    stored_dtype: str
    cache_bytes: int
    tied: bool = False
    head_bias: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: NormPlan | None = None
    parallel: bool = False
    rotary_width: int | None = None
    scaling: Scaling = _UNSCALED
    without_rope: tuple[int, ...] = ()
    window: int | None = None
    position_limit: int | None = None
    switch_length: int | None = None

    @property
    def plan(self) -> ModelPlan:
        attention = AttentionPlan(
            query_heads=self.query_heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            scale=self.head_dim**-0.5,
            qkv_bias=self.qkv_bias,
            out_bias=self.out_bias,
            qk_norm=self.qk_norm,
        )
        recipe = RopeVariant(base=self.base, width=self.rotary_width or self.head_dim, scaling=self.scaling)
        rotated = tuple(None if layer in self.without_rope else 0 for layer in range(self.layers))
        return ModelPlan(
            family=self.family,
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            max_positions=self.context,
            norm=self.norm,
            tied=self.tied,
            embed_scale=None,
            head_bias=self.head_bias,
            layers=(LayerPlan(attention, self.feed_forward, parallel=self.parallel),) * self.layers,
            mask=MaskPlan((self.window,), (0,) * self.layers),
            rope=RopePlan((recipe,), rotated),
            cache=CacheSpec.uniform(KVSlots(self.kv_heads, self.head_dim), self.layers),
        )

    def require(self, raw: Mapping[str, Any]) -> None:
        """Read a published config.json, by whichever family claims its ``model_type``.

        Raises:
            AssertionError: its plan is another one, has something to note, or leaves a key out of account.
            ConfigError: the family refuses it.
        """
        registry = Registry.discover()
        card = registry.card_for_model_type(raw["model_type"])
        family = registry.definition(card)
        config, ledger = family.config.read(dict(raw), source="a published config.json")
        plan = family.plan(config, family.options())
        assert plan == self.plan
        assert plan.notes == ()
        assert plan.position_limit == (self.position_limit or self.context)
        assert plan.switch_length == self.switch_length
        assert plan.cache.bytes_per_token(2) == self.cache_bytes
        assert config.stored_dtype == self.stored_dtype
        assert [entry.key for entry in ledger] == list(raw)
        assert ledger.of(Fate.REFUSED) == ()
