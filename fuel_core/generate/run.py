"""A run: prompts and settings in, pieces of text out as they become final, completions at the end."""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

from fuel_core.decode import DecodeSession
from fuel_core.generate.completion import Choice, Completion, Timings
from fuel_core.generate.loop import run_sequences
from fuel_core.generate.sampling import Sampler
from fuel_core.generate.sequence import SequenceState, Stopping
from fuel_core.generate.settings import GenerationSettings
from fuel_core.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Piece:
    """The text that became final with one token; it may be empty.

    Attributes:
        prompt, choice: whose, counted from 0.
    """

    prompt: int
    choice: int
    text: str
    token_id: int


class GenerationRun:
    """Continues prompts; iterate over it for the pieces.

    Args:
        session: its rows are how many sequences run at a time.
        prompts: token ids.
        stopping: one a prompt.
        settings: of all prompts.
        load_s: seconds that the model took to load, for the record.
        keep_prefix: rows keep what they hold of a prompt; see ``run_sequences``.
        done: called once the run has ended or was closed; not where it failed.

    Attributes:
        completions: of the prompts that are done, by their number.
    """

    def __init__(
        self,
        session: DecodeSession,
        tokenizer: Tokenizer,
        prompts: Sequence[Sequence[int]],
        stopping: Sequence[Stopping],
        settings: GenerationSettings,
        load_s: float,
        *,
        keep_prefix: bool = False,
        done: Callable[[], None] = lambda: None,
    ) -> None:
        assert settings.sampling is not None, "whoever makes a run has put the checkpoint's in its place"
        self.completions: dict[int, Completion] = {}
        self._session, self._load_s, self._keep_prefix = session, load_s, keep_prefix
        self._sequences = [
            [
                SequenceState(
                    prompt,
                    Sampler(settings.sampling, choice),
                    stop,
                    tokenizer.detokenizer(),
                    processors=settings.processors,
                    top_logprobs=settings.logprobs,
                )
                for choice in range(settings.n)
            ]
            for prompt, stop in zip(prompts, stopping, strict=True)
        ]
        self._done = done
        self._pieces = self._run()

    def __iter__(self) -> Iterator[Piece]:
        return self._pieces

    def finish(self) -> list[Completion]:
        """Run to the end and return the completions in the order of the prompts."""
        for _ in self._pieces:
            pass
        return [self.completions[prompt] for prompt in range(len(self._sequences))]

    def close(self) -> None:
        """End the run where it stands."""
        self._pieces.close()

    def _run(self) -> Generator[Piece, None, None]:
        try:
            yield from self._continue()
        except GeneratorExit:
            self._done()
            raise
        self._done()

    def _continue(self) -> Generator[Piece, None, None]:
        start = first = perf_counter()
        self._before = replace(self._session.phases)
        places = {
            sequence: (prompt, choice)
            for prompt, choices in enumerate(self._sequences)
            for choice, sequence in enumerate(choices)
        }
        texts: dict[SequenceState, list[str]] = {sequence: [] for sequence in places}
        run = run_sequences(self._session, list(places), keep_prefix=self._keep_prefix)
        for count, (sequence, text) in enumerate(run, start=1):
            first = perf_counter() if count == 1 else first
            texts[sequence].append(text)
            prompt, choice = places[sequence]
            choices = self._sequences[prompt]
            if all(state.finish_reason for state in choices):
                self.completions[prompt] = Completion(
                    choices=tuple(_choice(state, "".join(texts[state])) for state in choices),
                    prompt_token_ids=sequence.prompt,
                    timings=self._timings(start, first, perf_counter(), count),
                    counters=replace(self._session.counters),
                )
            yield Piece(prompt, choice, text, sequence.token_ids[-1])

    def _timings(self, start: float, first: float, stop: float, tokens: int) -> Timings:
        now, before = self._session.phases, self._before
        return Timings(
            load_ms=self._load_s * 1e3,
            first_token_ms=(first - start) * 1e3,
            decode_ms=(stop - first) * 1e3,
            total_ms=(stop - start) * 1e3,
            prefill_ms=(now.prefill - before.prefill) * 1e3,
            plan_ms=(now.plan - before.plan) * 1e3,
            rebind_ms=(now.rebind - before.rebind) * 1e3,
            replay_ms=(now.replay - before.replay) * 1e3,
            sample_ms=(now.sample - before.sample) * 1e3,
            tokens_per_s=(tokens - 1) / (stop - first) if tokens > 1 else None,
        )


def _choice(sequence: SequenceState, text: str) -> Choice:
    assert sequence.finish_reason is not None, "a sequence of a finished run is finished"
    return Choice(
        text=text,
        token_ids=tuple(sequence.token_ids),
        finish_reason=sequence.finish_reason,
        logprobs=tuple(sequence.logprobs),
    )


class TextStream:
    """The text of one continuation, piece by piece.

    Attributes:
        completion: the whole result, once the last piece is there.
    """

    def __init__(self, run: GenerationRun) -> None:
        self._run = run

    def __iter__(self) -> Iterator[str]:
        return (piece.text for piece in self._run if piece.text)

    @property
    def completion(self) -> Completion | None:
        return self._run.completions.get(0)

    def close(self) -> None:
        """End the continuation where it stands."""
        self._run.close()
