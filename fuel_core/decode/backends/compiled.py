"""The compiled backend: layers run through torch.compile, and on CUDA within a captured graph."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

from fuel_core.blocks.decoder import Decoder
from fuel_core.cache import Cache, CachePool, LayerBuffers
from fuel_core.decode.backends.contract import HeldStep
from fuel_core.decode.backends.cudagraph import CudaGraphBackend
from fuel_core.decode.backends.eager import EagerStep
from fuel_core.decode.backends.fallback import Fallback, lasting, reason
from fuel_core.decode.backends.step_body import StepBody
from fuel_core.decode.buffers import pool_of
from fuel_core.errors import TopologyChanged
from fuel_core.step import LayerStep, Step, StepInputs, StepTables

GRAPHS_A_PROCESS = 256
"""Compiled layers that torch may keep: one a structure and batch size. Its default of 8 is less than a
model of two structures has in six batch sizes; beyond its limit it refuses to run."""

# torch's own switches for "no more compiling" are of the whole process: one thread that replays would
# make another one's plan fail. Compiling happens on the thread that runs the layer, so this is of a thread.
_planning = ContextVar("fuel_planning", default=False)


def run_layer(layer: nn.Module, x_BTM: Tensor, step: LayerStep) -> Tensor:
    """What is compiled: one layer, its parameters inputs, so that layers of one structure share it."""
    out: Tensor = layer(x_BTM, step)
    return out


def compile_graph(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """Compile what was traced, by inductor; its cache on disk serves later processes.

    Raises:
        TopologyChanged: outside of planning, where nothing may be compiled.
    """
    if not _planning.get():
        raise TopologyChanged("a replay would compile anew: torch found other shapes, types or settings")
    from torch._inductor.compile_fx import compile_fx

    # the whole step is captured, by us: graphs of its layers would be captures within a capture
    patches = {"triton.cudagraphs": False}
    return compile_fx(graph, inputs, config_patches=patches)  # type: ignore[return-value]  # other callers' results


@contextmanager
def planning() -> Iterator[None]:
    """Allow compiling on this thread."""
    token = _planning.set(True)
    try:
        yield
    finally:
        _planning.reset(token)


class CompiledBody:
    """A step body whose layers are compiled when first seen; embedding, norm and head run as they are.

    Position, length and window are tensors, and the sizes of a pool are symbols: one graph serves all
    of them. A new batch size is a new graph.
    """

    def __init__(self) -> None:
        self._layer = torch.compile(  # type: ignore[call-overload]  # its overloads lack recompile_limit
            run_layer,
            fullgraph=True,
            dynamic=False,
            backend=compile_graph,
            recompile_limit=GRAPHS_A_PROCESS,
        )

    def __call__(
        self, decoder: Decoder, tables: StepTables, inputs: StepInputs, buffers: Sequence[LayerBuffers]
    ) -> Tensor:
        step = Step.cached(decoder.plan, tables, inputs, buffers, 0)
        x_BTM = decoder.embeddings(inputs.token_ids_BT)
        for index, layer in enumerate(decoder.layers):
            x_BTM = self._layer(layer, x_BTM, step.layer(index))
        return decoder.logits(decoder.norm(x_BTM)[:, -1])


def planned(body: StepBody) -> StepBody:
    """The same body, allowed to compile."""

    def run(
        decoder: Decoder, tables: StepTables, inputs: StepInputs, buffers: Sequence[LayerBuffers]
    ) -> Tensor:
        with planning():
            _mark_sizes(buffers)
            return body(decoder, tables, inputs, buffers)

    return run


def _mark_sizes(buffers: Sequence[LayerBuffers]) -> None:
    """Let rows and capacity of a pool be symbols of what is compiled."""
    from torch._dynamo import maybe_mark_dynamic

    for layer in buffers:
        for tensor in layer.tensors:
            maybe_mark_dynamic(tensor, 0)
            maybe_mark_dynamic(tensor, tensor.dim() - 2)


class CompiledStep:
    """A held step over compiled layers; another pool or decoder is a matter of arguments."""

    captures = 0
    staged = False

    def __init__(self, body: CompiledBody, decoder: Decoder, pool: CachePool, inputs: StepInputs) -> None:
        self._body, self._inputs = body, inputs
        self._decoder, self._buffers = decoder, pool.layers
        planned(body)(decoder, decoder.tables, inputs, pool.layers)

    def bind(self, decoder: Decoder, caches: Sequence[Cache | None]) -> int:
        self._decoder, self._buffers = decoder, pool_of(caches).layers
        return 0

    def replay(self, attended: int) -> Tensor:
        from torch._dynamo.exc import BackendCompilerFailed

        try:
            return self._body(self._decoder, self._decoder.tables, self._inputs, self._buffers)
        except BackendCompilerFailed as error:
            if isinstance(error.inner_exception, TopologyChanged):
                raise error.inner_exception from None
            raise

    def followed_by(self, follow: Callable[[Tensor], Tensor]) -> Callable[[int], Tensor]:
        return lambda attended: follow(self.replay(attended))


class CompiledBackend:
    """Compiles each structure of layer once; on CUDA the step is captured besides.

    Logits equal eager's within 1e-5 of the largest one in float32: kernels are fused and sum in another
    order. In bfloat16, where fusing leaves out roundings between operations, 24 layers of random weights
    differed by 1.4e-2 of it. A replay never compiles: where torch would have to, the plan no longer fits,
    which a strict session reports. Where nothing can be compiled, for want of a C++ compiler say, the
    step runs eagerly after one warning.

    What was compiled serves every model of its structure in this process, and through torch's own cache
    on disk (``TORCHINDUCTOR_CACHE_DIR``) later ones. On a CPU a step is bound by its matrix products,
    which are eager's own, so do not expect it to be faster there.
    """

    name = "compiled"

    def __init__(self) -> None:
        self._body = CompiledBody()
        self._fallback = Fallback(self.name)
        self._captured = CudaGraphBackend(planned(self._body), self.name)

    def batch_size(self, rows: int, device: torch.device) -> int:
        return self._captured.batch_size(rows, device) if device.type == "cuda" else rows

    def runs_ahead(self, device: torch.device) -> bool:
        return device.type == "cuda"

    def plan(self, decoder: Decoder, pool: CachePool, inputs: StepInputs, attended: int) -> HeldStep:
        if decoder.device.type == "cuda":
            return self._captured.plan(decoder, pool, inputs, attended)
        if self._fallback.serves(decoder):
            return EagerStep(decoder, pool, inputs)
        try:
            return CompiledStep(self._body, decoder, pool, inputs)
        except Exception as error:
            why, lasts = reason(error, decoder), lasting(error)
        return self._fallback.step(why, lasts, decoder, pool, inputs)
