"""What the driver asks of a backend."""

from typing import Protocol

from torch import Tensor

from fuel_core.blocks.decoder import Decoder
from fuel_core.cache import CachePool
from fuel_core.step import StepInputs


class HeldStep(Protocol):
    """A single-token step, planned once and replayed for every token."""

    def bind(self, decoder: Decoder, pool: CachePool) -> int:
        """Let the next replay use another pool, or another decoder over the same weights.

        Returns:
            How many buffers were copied: 0 where new arguments suffice.
        """

    def replay(self) -> Tensor:
        """Run the step on what its inputs hold now: logits ``[B, V]``, valid until the next replay.

        Raises:
            TopologyChanged: what the plan was captured on is gone.
        """


class Backend(Protocol):
    """A way of planning and replaying a step."""

    name: str

    def plan(self, decoder: Decoder, pool: CachePool, inputs: StepInputs) -> HeldStep:
        """Plan the step over static ``inputs``, which the driver overwrites before each replay.

        Planning runs nothing that the caller would notice: the first replay gives the first logits.
        """
