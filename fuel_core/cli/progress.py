"""Progress bars on standard error, for work that tells how far it is."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fuel_core.weights.progress import Progress


@contextmanager
def progress_bars() -> Iterator[Progress | None]:
    """Show a bar for each task that is reported inside the block; it leaves the screen with the block.

    Yields:
        Whom to tell, or None where standard error is no terminal that can move its cursor.
    """
    if not _shown():
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


@contextmanager
def counting_bar(task: str, total: int) -> Iterator[Callable[[], None]]:
    """Show how many of ``total`` things are done; it leaves the screen with the block.

    Yields:
        What to call for each thing that is done.
    """
    if not _shown():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress as Bars

    with Bars(console=Console(stderr=True), transient=True) as bars:
        bar = bars.add_task(task, total=total)
        yield lambda: bars.advance(bar)


def _shown() -> bool:
    """Whether standard error is a terminal that can move its cursor."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
