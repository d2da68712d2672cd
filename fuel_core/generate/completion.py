"""What a generation gives, and the stream that gives it piece by piece."""

from collections.abc import Collection, Generator, Iterator
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

from fuel_core.decode import Counters, DecodeSession
from fuel_core.generate.loop import FinishReason
from fuel_core.text.detokenizer import Detokenizer


@dataclass(frozen=True, kw_only=True)
class Timings:
    """Where the time of one generation went.

    Attributes:
        load_ms: reading the model, before this generation.
        prefill_ms: the prompt.
        first_token_ms: from the call to the first token.
        decode_ms: from the first token to the last.
        plan_ms, rebind_ms, replay_ms, sample_ms: parts of the above, by phase.
        tokens_per_s: tokens after the first by ``decode_ms``; None below two tokens.
    """

    load_ms: float
    prefill_ms: float
    first_token_ms: float
    decode_ms: float
    plan_ms: float
    rebind_ms: float
    replay_ms: float
    sample_ms: float
    tokens_per_s: float | None


@dataclass(frozen=True, kw_only=True)
class Completion:
    """The result of one generation.

    Attributes:
        text: what was generated, without special tokens and without the stop token.
        token_ids: all that was generated, a stop token included.
        prompt_token_ids: what it continues.
        finish_reason: ``"stop"`` at a stop token, ``"length"`` at the limit.
        timings, counters: of this generation's session.
    """

    text: str
    token_ids: tuple[int, ...]
    prompt_token_ids: tuple[int, ...]
    finish_reason: FinishReason
    timings: Timings
    counters: Counters

    def as_dict(self) -> dict[str, Any]:
        """The content as plain JSON values."""
        return asdict(self)


class CompletionStream:
    """Iterates over the text of a generation as it becomes final.

    Attributes:
        completion: the whole result, once the iteration is over.
    """

    completion: Completion | None = None

    def __init__(
        self,
        tokens: Generator[int, None, FinishReason],
        detokenizer: Detokenizer,
        session: DecodeSession,
        prompt: tuple[int, ...],
        stop_token_ids: Collection[int],
        load_s: float,
    ) -> None:
        self._tokens, self._detokenizer, self._session = tokens, detokenizer, session
        self._prompt, self._stop_token_ids, self._load_s = prompt, stop_token_ids, load_s
        self._pieces = self._run()

    def __iter__(self) -> Iterator[str]:
        return self._pieces

    def _run(self) -> Iterator[str]:
        start = perf_counter()
        first = start
        token_ids: list[int] = []
        pieces: list[str] = []
        while True:
            try:
                token = next(self._tokens)
            except StopIteration as end:
                finish_reason: FinishReason = end.value
                break
            if not token_ids:
                first = perf_counter()
            token_ids.append(token)
            if token not in self._stop_token_ids and (piece := self._detokenizer.push(token)):
                pieces.append(piece)
                yield piece
        stop = perf_counter()
        if rest := self._detokenizer.flush():
            pieces.append(rest)
            yield rest
        phases = self._session.phases
        self.completion = Completion(
            text="".join(pieces),
            token_ids=tuple(token_ids),
            prompt_token_ids=self._prompt,
            finish_reason=finish_reason,
            timings=Timings(
                load_ms=self._load_s * 1e3,
                prefill_ms=phases.prefill * 1e3,
                first_token_ms=(first - start) * 1e3,
                decode_ms=(stop - first) * 1e3,
                plan_ms=phases.plan * 1e3,
                rebind_ms=phases.rebind * 1e3,
                replay_ms=phases.replay * 1e3,
                sample_ms=phases.sample * 1e3,
                tokens_per_s=(len(token_ids) - 1) / (stop - first) if len(token_ids) > 1 else None,
            ),
            counters=self._session.counters,
        )
