"""Listing the operations that torch dispatches."""

from collections.abc import Callable
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

HOST_READ = "aten._local_scalar_dense.default"
"""What reading a tensor's value on the host dispatches."""


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.operations: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.operations.append(str(func))
        return func(*args, **(kwargs or {}))


def dispatched(call: Callable[[], object]) -> list[str]:
    """Run ``call`` and return the operations that it dispatched, in order. What a registered
    operation does inside is its own."""
    with _Recorder() as recorder:
        call()
    return recorder.operations
