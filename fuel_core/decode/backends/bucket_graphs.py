"""The graphs of a step over one pool: one a bucket of its capacity, captured when a row first needs it."""

from collections.abc import Callable, Sequence

from torch import Tensor

from fuel_core.cache import LayerBuffers
from fuel_core.decode.backends.recorder import Recorder
from fuel_core.decode.buckets import CapacityBuckets


class BucketGraphs:
    """Replays the graph of the smallest bucket that is enough. Where attention follows the lengths of rows
    by itself there is one bucket, and one graph.

    Attributes:
        output: the logits; each replay of any of the graphs overwrites them.

    Args:
        buckets: of the pool.
        run: the step, over buffers of the pool.
        recorder: captures it. A bucket that cannot be captured after the first one runs operation by
            operation.
        attended: what the first replay attends to.

    Raises: whatever the capture of the first bucket raises.
    """

    def __init__(
        self,
        buckets: CapacityBuckets,
        run: Callable[[Sequence[LayerBuffers]], Tensor],
        recorder: Recorder,
        attended: int,
    ) -> None:
        self._buckets, self._run, self._recorder = buckets, run, recorder
        size = buckets.size(attended)
        buffers = buckets.buffers(size)
        first = recorder.capture(lambda: run(buffers))
        self.output = first.output
        self._replays: dict[int, Callable[[], object]] = {size: first.replay}

    def replay(self, attended: int) -> Tensor:
        size = self._buckets.size(attended)
        if size not in self._replays:
            self._replays[size] = self._further(size)
        self._replays[size]()
        return self.output

    def _further(self, size: int) -> Callable[[], object]:
        run, output, buffers = self._run, self.output, self._buckets.buffers(size)

        def into_output() -> Tensor:
            return output.copy_(run(buffers))

        try:
            return self._recorder.capture(into_output).replay
        except Exception as error:
            self._recorder.give_up(f"the step of up to {size} tokens", error)
        return into_output
