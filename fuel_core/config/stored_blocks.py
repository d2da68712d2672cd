"""Checkpoints whose matrices are stored as 8-bit floats with one scale a block.

Source: the ``quantization_config`` and ``*_scale_inv`` tensors of the published DeepSeek-V3 weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fuel_core.config.shown import shown
from fuel_core.errors import ConfigError

_DESCRIPTIVE = {
    "activation_scheme",
    "dequantize",
    "fmt",
    "modules_to_convert",
    "modules_to_not_convert",
    "quant_method",
    "scale_fmt",
}
"""Keys that say how another engine multiplies; the tensors themselves say which are quantised."""


@dataclass(frozen=True)
class StoredBlocks:
    """The block of a matrix that shares one scale.

    A matrix of N x M has ``ceil(N / rows) x ceil(M / columns)`` scales; the last blocks may be cut.
    """

    rows: int
    columns: int

    @classmethod
    def read(cls, stated: Mapping[str, Any]) -> "StoredBlocks":
        """Read a ``quantization_config``.

        Raises:
            ConfigError: another method, or no block size.
        """
        method, size = stated.get("quant_method"), stated.get("weight_block_size")
        if method != "fp8" or size is None:
            raise ConfigError(
                f"quantization_config is of method {shown(method)} with weight_block_size {shown(size)}; "
                "fuel reads fp8 with one scale a block alone: use such a checkpoint, or an unquantised one"
            )
        whole = isinstance(size, list) and all(type(n) is int and n > 0 for n in size)
        if not whole or len(size) != 2:
            raise ConfigError(
                f"quantization_config: weight_block_size is {shown(size)}; rows and columns are expected"
            )
        if stated.get("expert_dtype") not in (None, "fp8"):
            raise ConfigError(
                f"quantization_config: expert_dtype is {shown(stated['expert_dtype'])}; fuel reads fp8 alone"
            )
        unknown = sorted(set(stated) - _DESCRIPTIVE - {"expert_dtype", "weight_block_size"})
        if unknown:
            raise ConfigError(f"quantization_config holds {', '.join(unknown)}, which nothing in fuel reads")
        return cls(*size)
