"""The eager backend: the held step is the decoder's own step over bound buffers."""

from torch import Tensor

from fuel_core.blocks.decoder import Decoder
from fuel_core.cache import CachePool
from fuel_core.step import StepInputs


class EagerStep:
    """A held step that dispatches its operations one by one."""

    def __init__(self, decoder: Decoder, pool: CachePool, inputs: StepInputs) -> None:
        self.inputs = inputs
        self.bind(decoder, pool)

    def bind(self, decoder: Decoder, pool: CachePool) -> int:
        self.decoder, self.buffers = decoder, pool.layers
        return 0

    def replay(self) -> Tensor:
        hidden = self.decoder.step(self.inputs, self.buffers)
        return self.decoder.logits(hidden[:, -1])


class EagerBackend:
    """Plans by binding alone; for every device."""

    name = "eager"

    def plan(self, decoder: Decoder, pool: CachePool, inputs: StepInputs) -> EagerStep:
        return EagerStep(decoder, pool, inputs)
