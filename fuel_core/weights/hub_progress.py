"""huggingface_hub's progress bars, heard and never seen."""

from collections.abc import Callable
from typing import Any


def unseen_bar(advanced: Callable[[int], None] | None) -> type:
    """The ``tqdm_class`` for one file: it shows nothing, and tells how many bytes of the file have come.

    A download may use several bars. Over Xet one counts bytes received and another bytes written; a new
    attempt starts from 0. What is told is the furthest of them, so it never falls.
    """
    from huggingface_hub.utils import tqdm  # type: ignore[attr-defined]  # loaded on first use

    furthest = 0

    class UnseenBar(tqdm):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{**options, "disable": True})
            self.bytes = int(options.get("initial") or 0)

        def update(self, n: float | None = 1) -> bool | None:
            nonlocal furthest
            self.bytes += int(n or 0)
            if self.bytes > furthest:
                furthest = self.bytes
                if advanced is not None:
                    advanced(furthest)
            return None

    return UnseenBar
