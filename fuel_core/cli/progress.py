"""Progress bars on standard error, for work that tells how far it is."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from fuel_core.weights.progress import Progress


@contextmanager
def progress_bars() -> Iterator[Progress | None]:
    """Show a bar for each task that is reported inside the block; it leaves the screen with the block.

    Yields:
        Whom to tell, or None where standard error is no terminal that can move its cursor.
    """
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    bars = Bars(*columns, console=Console(stderr=True), transient=True)
    ids = {}

    def show(task: str, done_bytes: int, total_bytes: int) -> None:
        if task not in ids:
            bars.start()  # not before: there may be nothing to show
            ids[task] = bars.add_task(task, total=total_bytes)
        bars.update(ids[task], completed=done_bytes)

    try:
        yield show
    finally:
        bars.stop()
