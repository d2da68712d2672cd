"""Iterating in a worker thread, so that an event loop goes on meanwhile."""

import asyncio
from collections.abc import AsyncIterator
from time import sleep
from typing import Any

from fuel_core.generate.run import GenerationRun, TextStream


async def off_loop(stream: GenerationRun | TextStream) -> AsyncIterator[Any]:
    """Iterate in a worker thread, one step at a time; close the stream when the consumer is gone."""
    steps = iter(stream)
    done = object()
    try:
        while (item := await asyncio.to_thread(next, steps, done)) is not done:
            yield item
    finally:
        # a step that a cancelled wait has left running ends before its generator can be closed
        await asyncio.shield(asyncio.to_thread(_close, stream))


def _close(stream: GenerationRun | TextStream) -> None:
    while True:
        try:
            return stream.close()
        except ValueError:  # "generator already executing"
            sleep(0.001)
