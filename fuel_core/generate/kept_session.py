"""The session of a run, kept for the next one: capturing a step takes as long as many tokens."""

from collections import deque

from fuel_core.blocks.decoder import Decoder
from fuel_core.decode import Backend, DecodeSession

LEAST_CAPACITY = 1024
"""Tokens of a row, at least, in a session that may be kept. Beyond, it is a power of two: most requests
differ in length by less."""


class KeptSession:
    """At most one session whose step was captured. Threads may share it: one of them gets the session."""

    def __init__(self) -> None:
        self._kept: deque[tuple[DecodeSession, int]] = deque(maxlen=1)

    def take(
        self, decoder: Decoder, *, rows: int, capacity: int, backend: Backend, strict: bool
    ) -> DecodeSession | None:
        """The kept session if it can serve; if it cannot, it is given up, and its memory is free for another.

        Args:
            backend: what was asked for, or one like it.
        """
        try:
            session, epoch = self._kept.pop()
        except IndexError:
            return None
        fits = (
            session.decoder is decoder
            and epoch == decoder.weights.epoch
            and len(session.caches) == rows
            and session.pool.capacity >= capacity
            and session.backend.name == backend.name
            and session.strict == strict
        )
        return session if fits else None

    def give(self, session: DecodeSession) -> None:
        """Keep a session that a run has done with, if its step was captured."""
        if session.counters.captures:
            self._kept.append((session, session.decoder.weights.epoch))

    def clear(self) -> None:
        self._kept.clear()


def roomy(capacity: int, limit: int) -> int:
    """The capacity of a session that may be kept, for a request of ``capacity`` tokens."""
    return min(limit, max(LEAST_CAPACITY, 1 << (capacity - 1).bit_length()))
