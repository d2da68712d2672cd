"""Copies between host and device that nobody waits for before their content is needed."""

from collections.abc import Sequence

import torch
from torch import Tensor


def upload(target: Tensor, values: Sequence[Sequence[float]]) -> None:
    """Overwrite a device tensor, after what the device has been given to do before.

    From pinned memory, since a copy from other memory waits until the device is done with all of that.
    """
    pinned = target.device.type == "cuda"
    target.copy_(torch.tensor(values, dtype=target.dtype, pin_memory=pinned), non_blocking=True)


class Readback:
    """A tensor's content on its way to the host; the tensor may be overwritten by what is launched next."""

    def __init__(self, tensor: Tensor) -> None:
        cuda = tensor.device.type == "cuda"
        self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=cuda)
        self._host.copy_(tensor, non_blocking=True)
        self._arrived = torch.cuda.Event() if cuda else None
        if self._arrived is not None:
            self._arrived.record(torch.cuda.current_stream(tensor.device))

    def wait(self) -> Tensor:
        """The content, once it is there."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._host
