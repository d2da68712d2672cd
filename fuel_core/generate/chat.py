"""A conversation that goes on: messages, and a session that keeps what it has read."""

from collections.abc import Generator
from typing import Any

from fuel_core.generate.generation import Generation
from fuel_core.generate.settings import GenerationSettings


class Conversation:
    """Turns of a user and a model over one decode session: a turn prefills what is new of it.

    Attributes:
        messages: the turns so far, a system message first where there is one.
    """

    def __init__(
        self,
        model: Generation,
        settings: GenerationSettings,
        *,
        system: str | None = None,
        backend: str | None = None,
    ) -> None:
        self._model, self._settings = model, settings
        self._session = model.session(backend=backend, strict=False)
        self.messages: list[dict[str, Any]] = []
        self.reset(system)

    def reset(self, system: str | None = None) -> None:
        """Forget all turns, and begin with a system message where one is given."""
        self.messages = [] if system is None else [{"role": "system", "content": system}]

    def ask(self, text: str) -> Generator[str, None, None]:
        """Say something; yield the answer, piece by piece.

        What was yielded before the consumer stops is remembered as the answer. A turn that cannot be
        answered at all leaves no trace.
        """
        turns = [*self.messages, {"role": "user", "content": text}]
        pieces = []
        stream = self._model.stream_chat(turns, self._settings, session=self._session)
        try:
            for piece in stream:
                pieces.append(piece)
                yield piece
        finally:
            stream.close()
            if pieces:
                self.messages = [*turns, {"role": "assistant", "content": "".join(pieces)}]
