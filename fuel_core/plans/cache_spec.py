"""What a model caches per token: named slots, per layer.

Letters: G key/value heads, D head dim, K latent rank, R rotary width.
"""

from dataclasses import dataclass

from fuel_core.errors import PlanError


@dataclass(frozen=True)
class KVSlots:
    """Keys and values of one attention layer: slots ``k`` and ``v``, each ``G x D`` a token."""

    heads: int
    head_dim: int

    @property
    def empty(self) -> bool:
        return min(self.heads, self.head_dim) < 1

    @property
    def elements(self) -> int:
        return 2 * self.heads * self.head_dim

    def __str__(self) -> str:
        return f"k, v: {self.heads} x {self.head_dim}"


@dataclass(frozen=True)
class LatentSlots:
    """MLA's compressed cache: slots ``latent`` (K) and ``k_pe`` (R), views of one buffer."""

    rank: int
    rope_width: int

    @property
    def empty(self) -> bool:
        return min(self.rank, self.rope_width) < 1

    @property
    def elements(self) -> int:
        return self.rank + self.rope_width

    def __str__(self) -> str:
        return f"latent: {self.rank}, k_pe: {self.rope_width}"


Slots = KVSlots | LatentSlots


@dataclass(frozen=True)
class CacheSpec:
    """The slots of every layer. Compares by value.

    Raises:
        PlanError: no layer, or a slot of no width.
    """

    layers: tuple[Slots, ...]

    def __post_init__(self) -> None:
        if not self.layers:
            raise PlanError("the cache spec covers no layer")
        for layer, slots in enumerate(self.layers):
            if slots.empty:
                raise PlanError(f"the cache spec gives layer {layer} slots of no width ({slots})")

    @classmethod
    def uniform(cls, slots: Slots, layers: int) -> "CacheSpec":
        """The same slots in every layer."""
        return cls((slots,) * layers)

    @property
    def elements_per_token(self) -> int:
        return sum(slots.elements for slots in self.layers)

    def bytes_per_token(self, itemsize: int) -> int:
        """Bytes that one token occupies over all layers at ``itemsize`` bytes an element."""
        return self.elements_per_token * itemsize
