"""A device that records and replays as a CUDA graph does, on the CPU.

A tape holds the operations that a run dispatched, with the tensors that they read and wrote. Playing it
runs the same operations on the same tensors and no Python of the model, so a tape keeps the addresses
that it was made with, as a graph does, and answers from old ones if a bind forgets them.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

UNCAPTURABLE = ("_local_scalar_dense", "nonzero", "masked_select", "lift_fresh")
"""What no CUDA stream can record: a value read on the host, a size that depends on data, a tensor made
from host numbers. (``lift_fresh`` is what ``torch.tensor`` dispatches.)"""


class Tape(TorchDispatchMode):
    """Records within ``with tape:``.

    Attributes:
        output: what the recorded run returned; playing overwrites it.
    """

    output: Tensor

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled code is recorded like any other; torch would otherwise run nothing compiled here."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        if name in UNCAPTURABLE:
            raise RuntimeError(f"{name}: operation not permitted when stream is capturing")
        result = func(*args, **(kwargs or {}))
        self._calls.append((func, args, kwargs or {}, result))
        return result

    def replay(self) -> None:
        for func, args, kwargs, result in self._calls:
            if func.is_view:  # what was recorded shows the new values
                continue
            fresh = func(*args, **kwargs)
            for old, new in zip(_tensors(result), _tensors(fresh), strict=True):
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)


class TapeDevice:
    """A graph device for tests.

    Attributes:
        batches: the batch size of each capture, in order.
        warm_ups, releases: how often these were asked for.
        failure: raised by the next capture, once.
        step_bytes: what a warm-up is said to take.
    """

    def __init__(self, failure: Exception | None = None) -> None:
        self.batches: list[int] = []
        self.warm_ups = self.releases = 0
        self.failure = failure
        self.step_bytes = 12_345

    def warm_up(self, run: Callable[[], Tensor]) -> int:
        self.warm_ups += 1
        run()
        return self.step_bytes

    def capture(self, run: Callable[[], Tensor]) -> Tape:
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure
        tape = Tape()
        with tape:
            tape.output = run()
        self.batches.append(tape.output.shape[0])
        return tape

    def release(self) -> None:
        self.releases += 1

    def free_bytes(self) -> int:
        return 678


def _tensors(result: Any) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    return (
        [tensor for tensor in result if isinstance(tensor, Tensor)]
        if isinstance(result, tuple | list)
        else []
    )
