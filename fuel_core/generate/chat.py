"""A conversation that goes on: messages, and a session that keeps what it has read."""

from collections.abc import Generator, Mapping, Sequence
from typing import Any

from fuel_core.generate.generation import Generation
from fuel_core.generate.settings import GenerationSettings

DEFAULT_ANSWER_TOKENS = 512
"""Of an answer, where the settings do not say."""


class Conversation:
    """Turns of a user and a model over one decode session: a turn prefills what is new of it.

    Args:
        settings: of every answer; a ``max_tokens`` of None is 512, or what the context leaves.
        template_variables: what else the template lets a caller choose, of every turn.

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
        template_variables: Mapping[str, Any] | None = None,
    ) -> None:
        self._model, self._settings, self._variables = model, settings, template_variables
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

        Raises:
            CapacityError: the context leaves too little room, or none.
            RequestError: the template refuses the turns.
        """
        turns = [*self.messages, {"role": "user", "content": text}]
        pieces = []
        prompt = self._model.chat_prompt(turns, template_variables=self._variables)
        stream = self._model.stream(
            prompt, self._settings, max_tokens=self._max_tokens(prompt), session=self._session
        )
        try:
            for piece in stream:
                pieces.append(piece)
                yield piece
        finally:
            stream.close()
            if pieces:
                self.messages = [*turns, {"role": "assistant", "content": "".join(pieces)}]

    def _max_tokens(self, prompt: Sequence[int]) -> int:
        if self._settings.max_tokens is not None:
            return self._settings.max_tokens
        room = self._session.pool.capacity - len(prompt)
        return max(1, min(DEFAULT_ANSWER_TOKENS, room))  # 1: where there is no room, the model refuses
