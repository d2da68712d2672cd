"""The cudagraph backend: the step is captured once and replayed for every token, request and cache."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fuel_core.blocks.decoder import Decoder
from fuel_core.cache import Cache, CachePool
from fuel_core.decode.backends.bucket_graphs import BucketGraphs
from fuel_core.decode.backends.contract import HeldStep
from fuel_core.decode.backends.eager import EagerStep
from fuel_core.decode.backends.fallback import Fallback, lasting, reason
from fuel_core.decode.backends.graph_device import CudaGraphs, GraphDevice
from fuel_core.decode.backends.recorder import Recorder
from fuel_core.decode.backends.staging import StagingRows
from fuel_core.decode.backends.static_tables import copy_of, overwrite
from fuel_core.decode.backends.step_body import StepBody, eager_body
from fuel_core.decode.buckets import CapacityBuckets, attended_tokens
from fuel_core.decode.buffers import pool_of
from fuel_core.errors import RequestError, TopologyChanged
from fuel_core.step import StepInputs

BATCH_SIZES = (1, 2, 4, 8, 16, 32)
"""Sizes that are captured; a step of other row counts runs in the next larger one, beyond the last in
one of its own. Twice a size costs little more time where weights are what is read."""


class CapturedStep:
    """A step captured over one pool, and a second graph once caches of other pools come.

    What a graph reads lies at fixed addresses. So:

    * rows of the pool that it was planned on cost nothing: their numbers are an input;
    * another decoder over the same weights costs a copy of its RoPE tables and windows;
    * caches of another pool are served from staging rows of the plan's own, by a second graph that is
      captured when the first such caches come. Their live prefix is copied in, once for as long as
      nobody else writes them, and each new token is copied back (see :class:`StagingRows`);
    * where attention costs what a row can hold, each bucket of it has a graph of its own (see
      :class:`BucketGraphs`).
    """

    def __init__(
        self,
        device: GraphDevice,
        body: StepBody,
        fallback: Fallback,
        decoder: Decoder,
        pool: CachePool,
        inputs: StepInputs,
        attended: int,
    ) -> None:
        self._device, self._body, self._fallback = device, body, fallback
        self._inputs = inputs
        self._decoder, self._pool, self._addresses = decoder, pool, pool.addresses
        self._tables = copy_of(decoder.tables)
        self.staged = False
        self._recorder = Recorder(device, fallback, decoder, inputs)
        self._graphs = self._graphs_of(inputs, pool, attended)
        self._staging: tuple[StagingRows, BucketGraphs] | None = None
        self._substitute: EagerStep | None = None

    @property
    def captures(self) -> int:
        return self._recorder.captures

    def bind(self, decoder: Decoder, caches: Sequence[Cache | None]) -> int:
        if self._pool.addresses != self._addresses:
            raise TopologyChanged("the cache's buffers were replaced after this step was captured")
        copies = 0
        if decoder is not self._decoder:
            copies += overwrite(self._tables, decoder.tables)
            self._decoder = self._recorder.decoder = decoder
        self.staged = pool_of(caches) is not self._pool
        if not self.staged:
            return copies
        if self._staging is None and self._substitute is None:
            self._prepare_staging(pool_of(caches), attended_tokens(caches))
        if self._staging is not None:
            return copies + self._staging[0].load(caches)
        assert self._substitute is not None, "made where staging failed"
        return copies + self._substitute.bind(decoder, caches)

    def replay(self, attended: int) -> Tensor:
        if not self.staged:
            return self._graphs.replay(attended)
        if self._staging is None:
            assert self._substitute is not None, "made where staging failed"
            return self._substitute.replay(attended)
        rows, graphs = self._staging
        logits_BV = graphs.replay(attended)
        rows.store()
        return logits_BV

    def followed_by(self, follow: Callable[[Tensor], Tensor]) -> Callable[[int], Tensor]:
        """A second graph behind the step's own, which stays as it is; where it cannot be captured,
        ``follow`` runs operation by operation, after one warning."""
        step, logits_BV = self._graphs, self._graphs.output
        try:
            tail = self._recorder.capture(lambda: follow(logits_BV))
        except Exception as error:
            self._recorder.give_up("the choice of tokens", error)
            return lambda attended: follow(step.replay(attended))

        def launch(attended: int) -> Tensor:
            step.replay(attended)
            tail.replay()
            return tail.output

        return launch

    def _prepare_staging(self, foreign: CachePool, attended: int) -> None:
        """Capture the graph of foreign caches; where that fails they are served eagerly."""
        # the driver overwrites them before the replay; now they may lie beyond the bucket of these caches
        self._inputs.positions_BT.zero_()
        try:
            rows = StagingRows(self._pool, self._inputs)
            self._staging = rows, self._graphs_of(rows.inputs, rows.pool, attended)
            return
        except Exception as error:
            why = f"rows of another pool: {reason(error, self._decoder)}"
        self._device.release()
        self._substitute = self._fallback.step(why, False, self._decoder, foreign, self._inputs)

    def _graphs_of(self, inputs: StepInputs, pool: CachePool, attended: int) -> BucketGraphs:
        body, decoder, tables = self._body, self._decoder, self._tables
        return BucketGraphs(
            CapacityBuckets(decoder.plan, pool),
            lambda buffers: body(decoder, tables, inputs, buffers),
            self._recorder,
            attended,
        )


class CudaGraphBackend:
    """Captures the step on CUDA; graphs of all batch sizes share one memory pool.

    A capture starts with runs on a side stream that write what the first token will write again. Sizes
    planned ahead are captured largest first, so that the memory of one serves the next. A step that
    cannot be captured runs eagerly, after one warning.

    Args:
        body: what is captured; by default the decoder's own step.
        name: of the backend, in messages.
        graphs: makes what captures on a device; tests give one that needs no GPU.
    """

    def __init__(
        self,
        body: StepBody = eager_body,
        name: str = "cudagraph",
        graphs: Callable[[torch.device], GraphDevice] | None = None,
    ) -> None:
        self.name = name
        self._body, self._graphs = body, graphs
        self._fallback = Fallback(name)
        self._devices: dict[torch.device, GraphDevice] = {}

    def batch_size(self, rows: int, device: torch.device) -> int:
        if self._graphs is None and device.type != "cuda":
            raise RequestError(
                f"backend {self.name!r} needs a CUDA device and the model is on {device}; choose 'compiled' "
                "or 'eager'"
            )
        return next((size for size in BATCH_SIZES if size >= rows), rows)

    def runs_ahead(self, device: torch.device) -> bool:
        return True

    def plan(self, decoder: Decoder, pool: CachePool, inputs: StepInputs, attended: int) -> HeldStep:
        """Capture the step."""
        device = self._device(decoder.device)
        if self._fallback.serves(decoder):
            return EagerStep(decoder, pool, inputs)
        try:
            return CapturedStep(device, self._body, self._fallback, decoder, pool, inputs, attended)
        except Exception as error:
            why, lasts = reason(error, decoder), lasting(error)
        # here the error is gone, and with its traceback the tensors that the failed run had made
        device.release()
        return self._fallback.step(why, lasts, decoder, pool, inputs)

    def _device(self, device: torch.device) -> GraphDevice:
        if device not in self._devices:
            self._devices[device] = CudaGraphs(device) if self._graphs is None else self._graphs(device)
        return self._devices[device]
