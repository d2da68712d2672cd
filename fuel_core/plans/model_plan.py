"""The one value that loader, step, shape key, ``fuel plan`` and golden files read."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

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


ActivationName = Literal["silu", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu"]
"""The activations that config.json files name."""


@dataclass(frozen=True)
class NormPlan:
    """A normalisation: ``rms`` has a weight, ``layer`` centres and has a bias too."""

    kind: Literal["rms", "layer"]
    eps: float

    def __str__(self) -> str:
        return f"{self.kind} norm, eps {self.eps:g}"


@dataclass(frozen=True, kw_only=True)
class AttentionPlan:
    """Grouped-query attention: H query heads share G key/value heads of D dimensions.

    ``qk_norm`` normalises each head of q and of k before it is rotated.
    """

    query_heads: int
    kv_heads: int
    head_dim: int
    scale: float
    qkv_bias: bool
    out_bias: bool
    qk_norm: NormPlan | None = None

    def __str__(self) -> str:
        bias = "+".join(n for n, on in (("qkv", self.qkv_bias), ("out", self.out_bias)) if on) or "none"
        norm = "" if self.qk_norm is None else f", q and k {self.qk_norm}"
        return f"attention {self.query_heads}q/{self.kv_heads}kv x {self.head_dim}, bias {bias}{norm}"


@dataclass(frozen=True, kw_only=True)
class LatentAttentionPlan:
    """Multi-head latent attention (arXiv:2405.04434): H heads read one latent of K and one key of R.

    Attributes:
        heads: H.
        nope_dim, rope_dim, value_dim: of a head: what is not rotated, what is, and its value.
        kv_rank: K, the width of the cached latent.
        q_rank: the width of the query's own latent; None for a plain projection.
        scale: factor on the scores.
        norm: of both latents.
        bias: on the projections into the latents, and on the one back.
        form: ``absorbed`` folds the latent's projections into the query and the output and reads the
            latent itself, ``expanded`` projects every latent to keys and values; ``auto`` takes the
            form that multiplies less.
    """

    heads: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    kv_rank: int
    q_rank: int | None
    scale: float
    norm: NormPlan
    bias: bool
    form: Literal["auto", "absorbed", "expanded"]

    @property
    def expanded_elements(self) -> int:
        """Elements a token that a cache of keys and values would hold."""
        return self.heads * (self.nope_dim + self.rope_dim + self.value_dim)

    def absorbs(self, tokens: int) -> bool:
        """Whether a step of ``tokens`` tokens runs absorbed.

        Expanded, each cached token costs K(N + V) multiplications a head once and N + R + V for each
        query; absorbed, 2K + R for each query. So few queries absorb and many expand, however many
        tokens are cached. Multiplications of attention count twice, as they take twice as long as those
        of a plain product: V2-Lite's break-even is at 85 tokens a step, and measured between 64 and 128
        (``benchmarks/mla.py``).
        """
        if self.form != "auto":
            return self.form == "absorbed"
        outputs = self.nope_dim + self.value_dim
        return 2 * tokens * (2 * self.kv_rank - outputs) < self.kv_rank * outputs

    def __str__(self) -> str:
        query = "plain q" if self.q_rank is None else f"q through {self.q_rank}"
        form = "" if self.form == "auto" else f", {self.form}"
        return (
            f"latent attention {self.heads}q x ({self.nope_dim} + {self.rope_dim} rotated), values "
            f"{self.value_dim}, {query}, kv through {self.kv_rank}, bias {'in+out' if self.bias else 'none'}"
            f"{form}"
        )


@dataclass(frozen=True, kw_only=True)
class GatedMLPPlan:
    """``down(activation(gate(x)) * up(x))`` through ``width`` hidden units."""

    width: int
    activation: ActivationName
    bias: bool = False

    def __str__(self) -> str:
        return f"gated mlp {self.width}, {self.activation}{', biased' if self.bias else ''}"


@dataclass(frozen=True, kw_only=True)
class MLPPlan:
    """``down(activation(up(x)))`` through ``width`` hidden units."""

    width: int
    activation: ActivationName
    bias: bool

    def __str__(self) -> str:
        return f"mlp {self.width}, {self.activation}{', biased' if self.bias else ''}"


@dataclass(frozen=True)
class LayerPlan:
    """The parts of one layer, as frozen values with a readable ``str``: those above, or a family's own.

    ``parallel`` parts read one norm of the layer's input and are added to it together; otherwise the
    feed-forward reads what the mixer has added to, through a norm of its own.
    """

    mixer: Any
    feed_forward: Any
    parallel: bool = False


@dataclass(frozen=True, kw_only=True)
class ModelPlan:
    """Everything about a model that is decided before a weight is read.

    Attributes:
        family: the family's name.
        vocab_size, hidden_size: V and M.
        max_positions: the trained context in tokens.
        norm: before the parts of a layer and after the last layer.
        tied: the output head is the embedding table.
        embed_scale: factor on the embeddings, applied in float32; None applies nothing.
        head_bias: the output head adds a bias.
        layers: the parts of each layer.
        mask, rope, cache: the per-layer plans.
        numerics: resolved when the model is loaded.
        notes: what a user should know about how the config was read.

    Raises:
        PlanError: the plans do not cover the same layers, or a tied head is to add a bias.
    """

    family: str
    vocab_size: int
    hidden_size: int
    max_positions: int
    norm: NormPlan
    tied: bool
    embed_scale: float | None
    head_bias: bool
    layers: tuple[LayerPlan, ...]
    mask: MaskPlan
    rope: RopePlan
    cache: CacheSpec
    numerics: Numerics = Numerics()
    notes: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        if self.tied and self.head_bias:
            raise PlanError(f"{self.family}: the head is the embedding table, which has no bias to add")
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

    @cached_property
    def position_limit(self) -> int:
        """The number of tokens that one sequence may hold; more are refused.

        The trained context, or what a RoPE recipe stretches it to. Qwen2.5, for one, documents a YaRN
        recipe for 131,072 tokens and leaves ``max_position_embeddings`` at 32,768.
        """
        reach = max(self.max_positions, self.rope.reach or 0)
        limit = self.rope.position_limit
        return reach if limit is None else min(limit, reach)

    @property
    def switch_length(self) -> int | None:
        """The longest sequence that the first RoPE table serves; None where no sequence needs another."""
        lengths = [variant.scaling.switch_length for variant in self.rope.variants]
        shortest = min((length for length in lengths if length is not None), default=self.position_limit)
        return shortest if shortest < self.position_limit else None

    @cached_property
    def structure(self) -> tuple[object, ...]:
        """What shapes a held step: two models that differ here never share one.

        Window widths, RoPE bases and table contents are absent on purpose: they are data.
        """
        return (
            self.family,
            self.vocab_size,
            self.hidden_size,
            self.norm,
            self.tied,
            self.embed_scale,
            self.head_bias,
            self.layers,
            self.mask.structure,
            self.rope.structure,
            self.cache,
            self.numerics,
        )

    def with_numerics(self, numerics: Numerics) -> "ModelPlan":
        return replace(self, numerics=numerics)
