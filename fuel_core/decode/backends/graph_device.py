"""What capturing asks of a device, and the one implementation: CUDA graphs.

All calls of ``torch.cuda`` that decoding makes stand here and in ``transfer``, so that the rest runs,
and is tested, without a GPU.

Source: the rules of CUDA graphs as torch's documentation states them ("CUDA semantics").
"""

import gc
from collections.abc import Callable
from contextlib import suppress
from threading import RLock
from typing import ClassVar, Protocol
from weakref import WeakSet

import torch
from torch import Tensor

WARM_UP_RUNS = 3
"""Runs before a capture: the first one loads kernels and allocates workspaces, which a capture must not."""


class CapturedGraph(Protocol):
    """A recorded run: its replays use the same addresses, and execute no Python.

    Attributes:
        output: what the run returned; each replay overwrites it.
    """

    output: Tensor

    def replay(self) -> None: ...


class GraphDevice(Protocol):
    """A device on which a run can be recorded. Its graphs share one memory pool."""

    def warm_up(self, run: Callable[[], Tensor]) -> int:
        """Run outside of any capture; return about how many bytes that took from the device."""

    def capture(self, run: Callable[[], Tensor]) -> CapturedGraph:
        """Record a run. Whatever it raises is raised, and the device is as usable as before."""

    def release(self) -> None:
        """Give the memory of dropped or failed graphs back to the device."""

    def free_bytes(self) -> int: ...


class CudaGraph:
    """A captured CUDA graph and the tensor that it writes."""

    def __init__(self, graph: torch.cuda.CUDAGraph, output: Tensor) -> None:
        self._graph, self.output = graph, output

    def replay(self) -> None:
        self._graph.replay()


class CudaGraphs:
    """Captures on a side stream of one CUDA device, into one pool.

    Attributes:
        capturing: held around warm-ups and captures: torch allows one capture at a time in a process, and
            what two threads run on one side stream would end in one graph.
        streams: the side stream of each device. One for all backends: cuBLAS keeps a workspace of tens of
            megabytes for every stream that it was called on, for as long as the process lives.
    """

    capturing: ClassVar = RLock()
    streams: ClassVar[dict[torch.device, torch.cuda.Stream]] = {}

    def __init__(self, device: torch.device) -> None:
        self._device = device
        with self.capturing:
            if device not in self.streams:
                self.streams[device] = torch.cuda.Stream(device)
            self._stream = self.streams[device]
        self._open_pool()

    def warm_up(self, run: Callable[[], Tensor]) -> int:
        with self.capturing:
            before = torch.cuda.memory_reserved(self._device)
            current = torch.cuda.current_stream(self._device)
            self._stream.wait_stream(current)
            try:
                with torch.cuda.stream(self._stream):
                    for _ in range(WARM_UP_RUNS):
                        run()
            finally:  # what was launched before a failure still reads the inputs, and writes
                current.wait_stream(self._stream)
            return torch.cuda.memory_reserved(self._device) - before

    def capture(self, run: Callable[[], Tensor]) -> CudaGraph:
        with self.capturing:
            torch.cuda.synchronize(self._device)
            self.release()
            alive = tuple(self._graphs)  # so that none goes, and closes the pool, before this one is in it
            if not alive:
                self._open_pool()
            with torch.cuda.stream(self._stream):
                captured = self._record(run)
            torch.cuda.current_stream(self._device).wait_stream(self._stream)
            self._graphs.add(captured)
            return captured

    def _record(self, run: Callable[[], Tensor]) -> CudaGraph:
        graph, pool = torch.cuda.CUDAGraph(), self._pool
        try:
            # "thread_local": what other threads allocate meanwhile is no fault of this capture
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            output = run()
            graph.capture_end()
        except BaseException:
            # it must end, or the stream stays in capture; that it is void is known already
            with suppress(RuntimeError):
                graph.capture_end()
            # where that raises first, the allocator would go on serving the void graph's pool
            with suppress(RuntimeError):
                torch._C._cuda_endAllocateToPool(self._device.index, pool)
            self._open_pool()
            raise
        return CudaGraph(graph, output)

    def _open_pool(self) -> None:
        """Later captures share a new pool: torch closes one for good once its graphs have gone, and a
        failed capture leaves one in no known state."""
        self._pool = torch.cuda.graph_pool_handle()
        self._graphs: WeakSet[CudaGraph] = WeakSet()

    def release(self) -> None:
        with self.capturing, torch.cuda.device(self._device):
            gc.collect()
            torch.cuda.empty_cache()

    def free_bytes(self) -> int:
        return torch.cuda.mem_get_info(self._device)[0]
