"""RoPE at run time: frequency tables of a model, cos and sin of a step, and the rotation.

Letters: B rows, T new tokens, R rotary width, N regimes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fuel_core.ops.kernels import fuses
from fuel_core.plans.rope import Layout, RopeVariant


@dataclass(frozen=True)
class RopeTable:
    """One recipe's tables on a device, float32 whatever the model's dtype.

    Attributes:
        inverse_frequencies: ``[R/2]``, or ``[N, R/2]`` with several regimes.
        magnitudes: ``[N]``, the factor on cos and sin; None when it is 1.
        layout: how dimensions pair.
    """

    inverse_frequencies: Tensor
    magnitudes: Tensor | None
    layout: Layout

    @classmethod
    def of(cls, variant: RopeVariant, device: torch.device) -> "RopeTable":
        tables = variant.inverse_frequencies().to(device)
        magnitudes = variant.scaling.magnitudes
        return cls(
            tables if variant.scaling.regimes > 1 else tables[0],
            torch.tensor(magnitudes, dtype=torch.float32, device=device) if magnitudes != (1.0,) else None,
            variant.layout,
        )

    def rows(self, positions_BT: Tensor, regime_B: Tensor) -> "RopeRows":
        """cos and sin at these positions, computed in float32 (an earlier cast would merge positions)."""
        frequencies, magnitudes = self.inverse_frequencies, self.magnitudes
        if frequencies.dim() == 2:
            frequencies = frequencies[regime_B][:, None]
            magnitudes = None if magnitudes is None else magnitudes[regime_B][:, None, None]
        angles = positions_BT.float()[..., None] * frequencies
        cos, sin = angles.cos(), angles.sin()
        if magnitudes is not None:
            cos, sin = cos * magnitudes, sin * magnitudes
        return RopeRows(cos[:, :, None], sin[:, :, None], self.layout)


@dataclass(frozen=True)
class RopeRows:
    """cos and sin of one step and one recipe, ``[B, T, 1, R/2]`` float32."""

    cos: Tensor
    sin: Tensor
    layout: Layout

    def rotate(self, x_BTHD: Tensor) -> Tensor:
        """Rotate the first R dimensions of each head; the others pass. Keeps the dtype."""
        if fuses(x_BTHD):
            from fuel_core.ops.triton.rotation import rotate_heads

            with torch.cuda.device_of(x_BTHD):
                return rotate_heads(x_BTHD, self.cos, self.sin, interleaved=self.layout == "interleaved")
        pairs = self.cos.shape[-1]
        width = 2 * pairs
        if self.layout == "half":
            first, second = x_BTHD[..., :pairs], x_BTHD[..., pairs:width]
        else:
            first, second = x_BTHD[..., 0:width:2], x_BTHD[..., 1:width:2]
        turned = (first * self.cos - second * self.sin, second * self.cos + first * self.sin)
        if self.layout == "half":
            rotated = torch.cat(turned, dim=-1)
        else:
            rotated = torch.stack(turned, dim=-1).flatten(-2)
        rotated = rotated.to(x_BTHD.dtype)
        if width == x_BTHD.shape[-1]:
            return rotated
        return torch.cat((rotated, x_BTHD[..., width:]), dim=-1)
