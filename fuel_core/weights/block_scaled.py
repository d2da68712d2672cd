"""Dequantising a matrix of 8-bit floats with one scale a block.

Source: the published DeepSeek-V3 weights: ``W = float(W_fp8) * weight_scale_inv`` of its block.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fuel_core.config.stored_blocks import StoredBlocks
from fuel_core.errors import CheckpointError
from fuel_core.weights.checkpoint import Checkpoint
from fuel_core.weights.safetensors_file import TensorInfo

SCALE_SUFFIX = "_scale_inv"


@dataclass(frozen=True)
class BlockScales:
    """The scales of a checkpoint: small, so that all of them are read before the first matrix.

    Attributes:
        blocks: what one scale covers.
        infos: name of the scaled tensor -> what the file says of its scales.
    """

    blocks: StoredBlocks
    infos: Mapping[str, TensorInfo]

    @classmethod
    def of(cls, checkpoint: Checkpoint, blocks: StoredBlocks | None) -> "BlockScales | None":
        """Those of a checkpoint whose config states blocks; else None."""
        if blocks is None:
            return None
        infos = {
            name.removesuffix(SCALE_SUFFIX): info
            for name, info in checkpoint.tensors.items()
            if name.endswith(SCALE_SUFFIX)
        }
        return cls(blocks, infos)

    def check(self, info: TensorInfo) -> None:
        """Check that an 8-bit tensor has the scales that it needs.

        Raises:
            CheckpointError: it has none, or as many as another shape would have.
        """
        scales = self.infos.get(info.name)
        if scales is None:
            raise CheckpointError(f"{info.file} holds {info.name} as {info.dtype} and no scales of it")
        rows, columns = info.shape
        wanted = (-(-rows // self.blocks.rows), -(-columns // self.blocks.columns))
        if not scales.dtype.is_floating_point:
            raise CheckpointError(f"{scales.file} holds {scales.name} as {scales.dtype}; scales are floating")
        if scales.shape != wanted:
            raise CheckpointError(
                f"{scales.file} holds {scales.name} of shape {list(scales.shape)}; {list(info.shape)} "
                f"in blocks of {self.blocks.rows} x {self.blocks.columns} has {list(wanted)}"
            )

    def dequantise(self, matrix: Tensor, scales: Tensor, into: Tensor) -> None:
        """Write a matrix, scaled in float32, into a tensor of its shape and any dtype and device."""
        rows, columns = self.blocks.rows, self.blocks.columns
        for block, scale in enumerate(scales.float()):  # row by row of blocks: no whole float32 copy
            span = slice(block * rows, (block + 1) * rows)
            factors = scale.repeat_interleave(columns)[: matrix.shape[1]]
            into[span].copy_(matrix[span].float() * factors)


def is_block_scaled(info: TensorInfo) -> bool:
    """Whether a tensor is a matrix of 8-bit floats."""
    return info.dtype is torch.float8_e4m3fn and len(info.shape) == 2
