"""Ending a text at a stop string, wherever the boundaries of tokens fall."""

from collections.abc import Sequence

from fuel_core.errors import RequestError


class StopText:
    """Releases text that can no longer be the start of a stop string.

    Of several stop strings the one that is complete first ends the text; of those complete at once,
    the one that begins first.

    Args:
        stops: none may be empty.

    Attributes:
        stopped: a stop string has been met; the text before it is all there is.

    Raises:
        RequestError: an empty stop string.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if any(not stop for stop in stops):
            raise RequestError("a stop string is empty; it would end every text before it begins")
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """Return what is final of all text so far and was not returned before."""
        if self.stopped:
            return ""
        # one character at a time decides which stop string is complete first
        released = []
        for character in text:
            self._held += character
            met = [stop for stop in self._stops if self._held.endswith(stop)]
            if met:
                self.stopped = True
                released.append(self._held.removesuffix(max(met, key=len)))
                self._held = ""
                break
            keep = max((_overlap(self._held, stop) for stop in self._stops), default=0)
            released.append(self._held[: len(self._held) - keep])
            self._held = self._held[len(self._held) - keep :]
        return "".join(released)

    def flush(self) -> str:
        """Return what was held back: the text has ended without a stop string."""
        rest, self._held = self._held, ""
        return rest


def _overlap(text: str, stop: str) -> int:
    """The length of the longest suffix of ``text`` that is a proper prefix of ``stop``."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if stop.startswith(text[-size:])), 0)
