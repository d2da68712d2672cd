"""A matrix product whose weights keep their stored dtype.

Letters: N inputs, O outputs.
"""

from contextlib import AbstractContextManager, nullcontext
from threading import Lock

import torch
import torch.nn.functional as F
from torch import Tensor

TILE_ELEMENTS = 1 << 20
"""Weights that are cast at a time: few enough to stay in a processor's cache, many enough to be worth
a call. Cast whole, a bfloat16 matrix of 17 million took 38 ms; in such tiles 3.0; float32 takes 4.2."""


def project(x: Tensor, weight_ON: Tensor) -> Tensor:
    """Return ``x @ weight.T`` in the dtype of ``x``; weights of another dtype are cast tile by tile."""
    if weight_ON.dtype != x.dtype:
        tiles = weight_ON.split(max(1, TILE_ELEMENTS // weight_ON.shape[1]))
        return torch.cat([F.linear(x, tile.to(x.dtype)) for tile in tiles], dim=-1)
    with dot_kernel(x, rows=x.numel() // x.shape[-1]):
        return F.linear(x, weight_ON)


def dot_kernel(x: Tensor, *, rows: int) -> AbstractContextManager[None]:
    """Within it torch multiplies ``rows`` rows of x by matrices, along their own rows, as fast as it can."""
    one_bfloat16_row = x.dtype is torch.bfloat16 and x.device.type == "cpu" and rows == 1
    if one_bfloat16_row and not torch.compiler.is_compiling():
        return _WITHOUT_ONEDNN
    return nullcontext()


class _OneDnnSwitch:
    """Lets torch use its own kernels, which read a bfloat16 matrix for one row about twice as fast.

    oneDNN rearranges the matrix first. On two Zen 5 cores that read 55 GB/s a matrix of 2816 x 2048
    went by at 18 GB/s with oneDNN and 47 without; on one core, which reads 36, at 14 and 26. Both sum in
    float32. The switch is torch's and belongs to the process: another thread's product meanwhile may
    take the other kernel, which is as right. The first to enter turns oneDNN off, the last to leave
    restores what was there.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._inside = 0
        self._enabled = True

    def __enter__(self) -> None:
        # torch.backends.mkldnn.flags sets more than this, at 5 us a call and with a warning
        with self._lock:
            if self._inside == 0:
                self._enabled = torch._C._get_mkldnn_enabled()
                torch._C._set_mkldnn_enabled(False)
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                torch._C._set_mkldnn_enabled(self._enabled)


_WITHOUT_ONEDNN = _OneDnnSwitch()
