"""Capturing the runs of one step: warmed up, counted, and given up with a word where it fails."""

from collections.abc import Callable

import torch
from torch import Tensor

from fuel_core.blocks.decoder import Decoder
from fuel_core.decode.backends.fallback import Fallback, reason
from fuel_core.decode.backends.graph_device import CapturedGraph, GraphDevice
from fuel_core.step import StepInputs


class Recorder:
    """Captures on a device what belongs to one step.

    Attributes:
        decoder: whose step it is; messages name its modules.
        captures: graphs captured so far.
    """

    def __init__(self, device: GraphDevice, fallback: Fallback, decoder: Decoder, inputs: StepInputs) -> None:
        self._device, self._fallback, self._inputs = device, fallback, inputs
        self.decoder = decoder
        self.captures = 0

    def capture(self, run: Callable[[], Tensor]) -> CapturedGraph:
        """Warm up and record a run.

        Raises:
            torch.OutOfMemoryError: saying how much was needed and how much is free.
        """
        needed = 0
        try:
            needed = self._device.warm_up(run)
            graph = self._device.capture(run)
        except torch.OutOfMemoryError as error:
            wanted = f"a step takes about {needed:,} bytes" if needed else str(error).splitlines()[0]
            raise torch.OutOfMemoryError(
                f"{wanted} beside weights and caches, {self._device.free_bytes():,} bytes are free"
            ) from None
        self.captures += 1
        return graph

    def give_up(self, what: str, error: Exception) -> None:
        """Warn of a part that runs operation by operation, and give back the memory that its capture took."""
        self._fallback.part(what, reason(error, self.decoder), self.decoder, self._inputs)
        self._device.release()
