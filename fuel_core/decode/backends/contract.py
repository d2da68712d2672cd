"""What the driver asks of a backend."""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from fuel_core.blocks.decoder import Decoder
from fuel_core.cache import Cache, CachePool
from fuel_core.step import StepInputs


class HeldStep(Protocol):
    """A single-token step, planned once and replayed for every token.

    Attributes:
        captures: graphs captured so far.
        staged: the bound caches are served through copies, so that each step binds them anew.
    """

    @property
    def captures(self) -> int: ...

    @property
    def staged(self) -> bool: ...

    def bind(self, decoder: Decoder, caches: Sequence[Cache | None]) -> int:
        """Let the next replay use caches of another pool, or another decoder over the same weights.

        Returns:
            How many buffers were copied: 0 where new arguments suffice.

        Raises:
            TopologyChanged: what the plan was captured on is gone.
        """

    def replay(self, attended: int) -> Tensor:
        """Run the step on what its inputs hold now: logits ``[B, V]``, valid until the next replay.

        Args:
            attended: at least as many tokens as any row attends to, its new one included.

        Raises:
            TopologyChanged: what the plan was captured on is gone.
        """

    def followed_by(self, follow: Callable[[Tensor], Tensor]) -> Callable[[int], Tensor]:
        """Return what replays the step and runs ``follow`` on its logits, with one result of a fixed
        shape that the next call overwrites. It reads nothing on the host. Its argument is that of
        :meth:`replay`.

        Where the backend captures, ``follow`` is captured too; that may run it. The step must not be
        ``staged`` when the result is called.
        """


class Backend(Protocol):
    """A way of planning and replaying a step."""

    name: str

    def batch_size(self, rows: int, device: torch.device) -> int:
        """The batch size, at least ``rows``, in which a step of so many rows runs; idle rows fill it.

        Raises:
            RequestError: the backend cannot serve the device.
        """

    def runs_ahead(self, device: torch.device) -> bool:
        """Whether generation lets the device choose its tokens and launches a step before it knows them.

        That pays where the host waits for the device.
        """

    def plan(self, decoder: Decoder, pool: CachePool, inputs: StepInputs, attended: int) -> HeldStep:
        """Plan the step over static ``inputs``, which the driver overwrites before each replay.

        Planning may run the step on what ``inputs`` hold, any number of times: that writes what the
        first replay writes again. The first replay gives the first logits; ``attended`` is its own.
        """
