"""A backend for tests: runs as the eager one does, records, and fails when told to."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fuel_core.blocks.decoder import Decoder
from fuel_core.cache import Cache, CachePool
from fuel_core.decode.backends.eager import EagerStep
from fuel_core.step import StepInputs


class RecordingBackend:
    """Records what the driver asks for.

    Attributes:
        events: ``"plan"``, ``"bind"`` and ``"replay"`` in the order they came.
        failures: replay number (from 1) -> the exception that it raises.
        addresses: of the static input buffers, at each replay.
    """

    name = "recording"

    def __init__(self, failures: dict[int, Exception] | None = None) -> None:
        self.events: list[str] = []
        self.failures = failures or {}
        self.addresses: list[tuple[int, ...]] = []

    def batch_size(self, rows: int, device: torch.device) -> int:
        return rows

    def runs_ahead(self, device: torch.device) -> bool:
        return False

    def plan(self, decoder: Decoder, pool: CachePool, inputs: StepInputs, attended: int) -> "_RecordedStep":
        self.events.append("plan")
        return _RecordedStep(self, decoder, pool, inputs)


class _RecordedStep(EagerStep):
    def __init__(
        self, backend: RecordingBackend, decoder: Decoder, pool: CachePool, inputs: StepInputs
    ) -> None:
        super().__init__(decoder, pool, inputs)
        self.backend = backend

    def bind(self, decoder: Decoder, caches: Sequence[Cache | None]) -> int:
        self.backend.events.append("bind")
        return super().bind(decoder, caches)

    def replay(self, attended: int) -> Tensor:
        backend, inputs = self.backend, self.inputs
        backend.events.append("replay")
        tensors = (inputs.token_ids_BT, inputs.positions_BT, inputs.rows_B, inputs.rope_regime_B)
        backend.addresses.append(tuple(tensor.data_ptr() for tensor in tensors))
        failure = backend.failures.get(backend.events.count("replay"))
        if failure is not None:
            raise failure
        return super().replay(attended)
