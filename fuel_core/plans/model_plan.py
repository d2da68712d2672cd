"""The one value that loader, step, shape key, ``fuel plan`` and golden files read."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch

from fuel_core.errors import PlanError
from fuel_core.plans.cache_spec import CacheSpec
from fuel_core.plans.mask import MaskPlan
from fuel_core.plans.rope import RopePlan


@dataclass(frozen=True, kw_only=True)
class Numerics:
    """The dtypes of one loaded model.

    Norms, biases, softmax and RoPE run in at least float32 whatever these are.
    """

    weights: torch.dtype = torch.float32
    activations: torch.dtype = torch.float32
    cache: torch.dtype = torch.float32


@dataclass(frozen=True, kw_only=True)
class AttentionPlan:
    """Grouped-query attention: H query heads share G key/value heads of D dimensions."""

    query_heads: int
    kv_heads: int
    head_dim: int
    scale: float
    qkv_bias: bool
    out_bias: bool

    def __str__(self) -> str:
        bias = "+".join(n for n, on in (("qkv", self.qkv_bias), ("out", self.out_bias)) if on) or "none"
        return f"attention {self.query_heads}q/{self.kv_heads}kv x {self.head_dim}, bias {bias}"


@dataclass(frozen=True, kw_only=True)
class GatedMLPPlan:
    """``down(activation(gate(x)) * up(x))`` through ``width`` hidden units."""

    width: int
    activation: str

    def __str__(self) -> str:
        return f"gated mlp {self.width}, {self.activation}"


@dataclass(frozen=True)
class LayerPlan:
    """The parts of one layer, as frozen values with a readable ``str``: those below, or a family's own."""

    mixer: Any
    feed_forward: Any


@dataclass(frozen=True, kw_only=True)
class ModelPlan:
    """Everything about a model that is decided before a weight is read.

    Attributes:
        family: the family's name.
        vocab_size, hidden_size: V and M.
        max_positions: the trained context in tokens.
        norm_eps: of every norm that the family's plan does not describe itself.
        tied: the output head is the embedding table.
        embed_scale: factor on the embeddings, applied in float32; None applies nothing.
        layers: the parts of each layer.
        mask, rope, cache: the per-layer plans.
        numerics: resolved when the model is loaded.
        notes: what a user should know about how the config was read.

    Raises:
        PlanError: the plans do not cover the same layers.
    """

    family: str
    vocab_size: int
    hidden_size: int
    max_positions: int
    norm_eps: float
    tied: bool
    embed_scale: float | None
    layers: tuple[LayerPlan, ...]
    mask: MaskPlan
    rope: RopePlan
    cache: CacheSpec
    numerics: Numerics = Numerics()
    notes: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        covered = {
            "mask": self.mask.layers,
            "RoPE": self.rope.layers,
            "cache": len(self.cache.layers),
        }
        for plan, layers in covered.items():
            if layers != len(self.layers):
                raise PlanError(
                    f"{self.family}: the {plan} plan covers {layers} layer(s), "
                    f"the model has {len(self.layers)}"
                )

    @property
    def position_limit(self) -> int:
        """The number of tokens that one sequence may hold; more are refused.

        The trained context, or what a RoPE recipe stretches it to. Qwen2.5, for one, documents a YaRN
        recipe for 131,072 tokens and leaves ``max_position_embeddings`` at 32,768.
        """
        reach = max(self.max_positions, self.rope.reach or 0)
        limit = self.rope.position_limit
        return reach if limit is None else min(limit, reach)

    @cached_property
    def structure(self) -> tuple[object, ...]:
        """What shapes a held step: two models that differ here never share one.

        Window widths, RoPE bases and table contents are absent on purpose: they are data.
        """
        return (
            self.family,
            self.vocab_size,
            self.hidden_size,
            self.norm_eps,
            self.tied,
            self.embed_scale,
            self.layers,
            self.mask.structure,
            self.rope.structure,
            self.cache,
            self.numerics,
        )

    def with_numerics(self, numerics: Numerics) -> "ModelPlan":
        return replace(self, numerics=numerics)
