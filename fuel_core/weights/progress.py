"""How long work tells its caller how far it is. Nothing here is ever shown."""

from typing import Protocol


class Progress(Protocol):
    """Called from time to time during long work, and not necessarily from the caller's thread.

    A task's first call has ``done_bytes == 0``, its last ``done_bytes == total_bytes``; in between
    ``done_bytes`` never falls.
    """

    def __call__(self, task: str, done_bytes: int, total_bytes: int) -> None:
        """Learn that ``task``, such as ``"downloading org/name"``, has done so many of its bytes."""
