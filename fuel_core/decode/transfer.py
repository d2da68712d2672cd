"""Copies between host and device that nobody waits for before their content is needed."""

import torch
from torch import Tensor


def upload(target: Tensor, values: Tensor) -> None:
    """Overwrite a device tensor with values of the host, after what the device was given to do before.

    From pinned memory, since a copy from other memory waits until the device is done with all of that.
    """
    target.copy_(values.pin_memory() if target.device.type == "cuda" else values, non_blocking=True)


class Readback:
    """A tensor's content on its way to the host; the tensor may be overwritten by what is launched next."""

    def __init__(self, tensor: Tensor) -> None:
        cuda = tensor.device.type == "cuda"
        self._host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=cuda)
        self._host.copy_(tensor, non_blocking=True)
        self._arrived = torch.cuda.Event() if cuda else None
        if self._arrived is not None:
            self._arrived.record(torch.cuda.current_stream(tensor.device))

    def wait(self) -> Tensor:
        """The content, once it is there."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._host
