"""How a rotary embedding is stretched beyond the context it was trained on.

Each scaling is a frozen value with the same small interface: ``scale`` turns the plain inverse
frequencies into its own, ``magnitudes`` multiplies cos and sin, ``regimes`` counts its tables.
All of it is float32 on the CPU, whatever torch's defaults are when a model is built.

Sources: linear (arXiv:2306.15595), dynamic NTK (its published form in Llama-like models), llama3
(Llama 3.1 model card and reference code), YaRN (arXiv:2309.00071, with DeepSeek-V2's two
corrections, arXiv:2405.04434), LongRoPE (arXiv:2402.13753, as Phi-3 publishes it).
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch

from fuel_core.errors import PlanError


def pair_exponents(width: int) -> torch.Tensor:
    """Return 2i/R for each pair i: float32 ``[R/2]``, on the CPU."""
    return torch.arange(0, width, 2, dtype=torch.int64, device="cpu").float() / width


class Scaling(Protocol):
    """What a rotary recipe asks of its scaling."""

    kind: ClassVar[str]

    @property
    def regimes(self) -> int:
        """How many frequency tables there are."""

    @property
    def magnitudes(self) -> tuple[float, ...]:
        """The factor on cos and sin, one a regime."""

    @property
    def switch_length(self) -> int | None:
        """The longest sequence that the first of two tables serves; None with one table."""

    @property
    def position_limit(self) -> int | None:
        """Positions from here on are not defined; None for no limit."""

    @property
    def reach(self) -> int | None:
        """The number of positions that this recipe was made for; None where it does not say."""

    def regime(self, length: int) -> int:
        """Which table a sequence of ``length`` tokens uses."""

    def check(self, width: int) -> None:
        """Raise PlanError when this scaling does not fit a rotary width."""

    def scale(self, base: float, width: int, plain: torch.Tensor) -> torch.Tensor:
        """Turn plain inverse frequencies, float32 [R/2], into float32 [regimes, R/2]."""


@dataclass(frozen=True)
class NoScaling:
    """The trained frequencies, unchanged: one table, no limit. The base of the others."""

    kind: ClassVar[str] = "none"

    @property
    def regimes(self) -> int:
        return 1

    @property
    def magnitudes(self) -> tuple[float, ...]:
        return (1.0,)

    @property
    def switch_length(self) -> int | None:
        return None

    @property
    def position_limit(self) -> int | None:
        return None

    @property
    def reach(self) -> int | None:
        return None

    def regime(self, length: int) -> int:
        return 0

    def check(self, width: int) -> None:
        return

    def scale(self, base: float, width: int, plain: torch.Tensor) -> torch.Tensor:
        return plain[None]


UNSCALED = NoScaling()


@dataclass(frozen=True, kw_only=True)
class LinearScaling(NoScaling):
    """Every position divided by ``factor``."""

    kind: ClassVar[str] = "linear"
    factor: float

    def scale(self, base: float, width: int, plain: torch.Tensor) -> torch.Tensor:
        return (plain / self.factor)[None]


def dynamic_base(base: float, width: int, factor: float, original_length: int, length: int) -> float:
    """The base that dynamic NTK scaling uses for a sequence of ``length`` tokens.

    Up to ``original_length`` it is the trained base, however short a server's own limit is.
    """
    stretch = factor * max(length, original_length) / original_length - (factor - 1)
    return base * stretch ** (width / (width - 2))


@dataclass(frozen=True, kw_only=True)
class DynamicScaling(NoScaling):
    """Dynamic NTK: plain RoPE within the trained length, undefined beyond it unless frozen.

    The published rule changes the base with the current length, which contradicts keys cached
    under another base. So the base is either the trained one, with ``position_limit`` at the
    trained length, or frozen at the one that ``frozen_length`` tokens would give.
    """

    kind: ClassVar[str] = "dynamic"
    factor: float
    original_length: int
    frozen_length: int | None = None

    @property
    def position_limit(self) -> int | None:
        return self.original_length if self.frozen_length is None else self.frozen_length

    @property
    def reach(self) -> int | None:
        return self.frozen_length

    def check(self, width: int) -> None:
        if width <= 2:
            raise PlanError(f"dynamic RoPE scaling needs a rotary width above 2, got {width}")

    def scale(self, base: float, width: int, plain: torch.Tensor) -> torch.Tensor:
        if self.frozen_length is None:
            return plain[None]
        frozen = dynamic_base(base, width, self.factor, self.original_length, self.frozen_length)
        return (1.0 / frozen ** pair_exponents(width))[None]


@dataclass(frozen=True, kw_only=True)
class Llama3Scaling(NoScaling):
    """Llama 3.1: long wavelengths divided by ``factor``, short ones kept, a blend between.

    Raises:
        PlanError: ``high_freq_factor`` is not above ``low_freq_factor``.
    """

    kind: ClassVar[str] = "llama3"
    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_length: int

    def __post_init__(self) -> None:
        if self.high_freq_factor <= self.low_freq_factor:
            raise PlanError(
                f"llama3 RoPE scaling needs high_freq_factor ({self.high_freq_factor}) above "
                f"low_freq_factor ({self.low_freq_factor})"
            )

    def scale(self, base: float, width: int, plain: torch.Tensor) -> torch.Tensor:
        wavelength = 2 * math.pi / plain
        smooth = (self.original_length / wavelength - self.low_freq_factor) / (
            self.high_freq_factor - self.low_freq_factor
        )
        blend = smooth.clamp(0, 1)
        return torch.where(blend == 1, plain, (1 - blend) * plain / self.factor + blend * plain)[None]


def yarn_magnitude(factor: float, mscale: float) -> float:
    """YaRN's growth of attention magnitude, ``0.1 * mscale * ln(factor) + 1`` (1 up to factor 1)."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


@dataclass(frozen=True, kw_only=True)
class YarnScaling(NoScaling):
    """YaRN: interpolates the pairs that turn less than ``beta_slow`` times in the trained length,
    keeps those that turn more than ``beta_fast`` times, ramps between.

    ``mscale`` and ``mscale_all_dim`` are DeepSeek's; their absent values, 1 and 0, give the paper's
    factor. ``attention_factor`` overrides the factor on cos and sin.

    Raises:
        PlanError: ``beta_fast`` is below ``beta_slow``.
    """

    kind: ClassVar[str] = "yarn"
    factor: float
    original_length: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 1.0
    mscale_all_dim: float = 0.0
    truncate: bool = True
    attention_factor: float | None = None

    def __post_init__(self) -> None:
        if self.beta_fast < self.beta_slow:
            raise PlanError(
                f"yarn RoPE scaling needs beta_fast ({self.beta_fast}) at or above beta_slow "
                f"({self.beta_slow})"
            )

    @property
    def magnitudes(self) -> tuple[float, ...]:
        if self.attention_factor is not None:
            return (self.attention_factor,)
        return (yarn_magnitude(self.factor, self.mscale) / yarn_magnitude(self.factor, self.mscale_all_dim),)

    @property
    def reach(self) -> int | None:
        return int(self.factor * self.original_length)

    @property
    def softmax_factor(self) -> float:
        """DeepSeek's second correction, a factor on the softmax scale (1 without mscale_all_dim)."""
        return yarn_magnitude(self.factor, self.mscale_all_dim) ** 2

    def _pair_turning(self, base: float, width: int, turns: float) -> float:
        """The (fractional) pair that turns this many times within the trained length."""
        return width * math.log(self.original_length / (turns * 2 * math.pi)) / (2 * math.log(base))

    def scale(self, base: float, width: int, plain: torch.Tensor) -> torch.Tensor:
        low = self._pair_turning(base, width, self.beta_fast)
        high = self._pair_turning(base, width, self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        # both ends of both: a ramp that lies outside of the pairs keeps all or interpolates all
        low, high = (min(max(end, 0), width - 1) for end in (low, high))
        if low == high:
            high += 0.001  # a step instead of a ramp; the published code does the same
        pairs = torch.arange(width // 2, dtype=torch.float32, device="cpu")
        interpolate = ((pairs - low) / (high - low)).clamp(0, 1)
        return (plain / self.factor * interpolate + plain * (1 - interpolate))[None]


@dataclass(frozen=True, kw_only=True)
class LongRopeScaling(NoScaling):
    """LongRoPE: one table for sequences up to the trained length, another for longer ones.

    ``magnitude`` multiplies cos and sin; ``short_mscale`` and ``long_mscale`` replace it per table.
    """

    kind: ClassVar[str] = "longrope"
    short_factor: tuple[float, ...]
    long_factor: tuple[float, ...]
    original_length: int
    magnitude: float
    short_mscale: float | None = None
    long_mscale: float | None = None

    @staticmethod
    def published_magnitude(factor: float, original_length: int) -> float:
        """Phi-3's ``sqrt(1 + ln(factor) / ln(original_length))``, 1 up to factor 1."""
        return 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original_length))

    @property
    def regimes(self) -> int:
        return 2

    @property
    def magnitudes(self) -> tuple[float, ...]:
        short = self.magnitude if self.short_mscale is None else self.short_mscale
        long = self.magnitude if self.long_mscale is None else self.long_mscale
        return (short, long)

    @property
    def switch_length(self) -> int | None:
        return self.original_length

    def regime(self, length: int) -> int:
        return int(length > self.original_length)

    def check(self, width: int) -> None:
        for name, factors in (("short_factor", self.short_factor), ("long_factor", self.long_factor)):
            if len(factors) != width // 2:
                raise PlanError(
                    f"longrope's {name} has {len(factors)} entries, but a rotary width of {width} "
                    f"has {width // 2} pairs"
                )

    def scale(self, base: float, width: int, plain: torch.Tensor) -> torch.Tensor:
        factors = torch.tensor([self.short_factor, self.long_factor], dtype=torch.float32, device="cpu")
        return 1.0 / (factors * base ** pair_exponents(width))
