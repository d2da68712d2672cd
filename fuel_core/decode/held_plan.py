"""What a session keeps of a step that it has planned."""

from dataclasses import dataclass

from fuel_core.blocks.decoder import Decoder
from fuel_core.cache import CachePool
from fuel_core.decode.ahead import Ahead
from fuel_core.decode.backends import HeldStep
from fuel_core.decode.buffers import StaticInputs


@dataclass
class HeldPlan:
    """A planned step with all that decides whether it still fits.

    Attributes:
        key: structure of the model, identity of its weights, geometry of the caches, batch size.
        step, inputs: the planned step and the static buffers that it reads.
        decoder, pool: what it is bound to.
        addresses, epoch: where the pool's buffers and which parameters it was bound to.
        ahead: what chooses tokens on the device.
    """

    key: tuple[object, ...]
    step: HeldStep
    inputs: StaticInputs
    decoder: Decoder
    pool: CachePool
    addresses: tuple[int, ...]
    epoch: int
    ahead: Ahead
