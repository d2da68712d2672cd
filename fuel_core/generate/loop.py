"""The generation loop: prompts are prefilled row by row, then every row takes one planned step.

A row that ends gives its place to the next prompt; there is no padding. Where it pays, the device chooses
the tokens and runs a step ahead; what it has no means for, such as penalties, the host does.
"""

from collections.abc import Iterator, Sequence

import torch

from fuel_core.cache import Cache
from fuel_core.decode import DecodeSession
from fuel_core.decode.token_choice import RowChoice
from fuel_core.errors import SessionBusy
from fuel_core.generate.sequence import SequenceState


def run_sequences(
    session: DecodeSession, sequences: Sequence[SequenceState], *, keep_prefix: bool = False
) -> Iterator[tuple[SequenceState, str]]:
    """Run sequences to their ends, as many at a time as the session has rows.

    Args:
        keep_prefix: let a row keep what it holds of a prompt from before. The logits are those of a
            fresh row up to rounding, since they were computed in other chunks.

    Yields:
        A sequence and the text that became final with its newest token, after each token.

    The last token of a sequence is not fed back. Sequences do not influence each other.

    Raises:
        SessionBusy: a row of a running sequence was changed by somebody else in between.
    """
    waiting = list(reversed(sequences))
    rows: list[SequenceState | None] = [None] * len(session.caches)
    left = [(0, 0)] * len(session.caches)

    def accept(sequence: SequenceState, logits_V: torch.Tensor) -> str:
        with session.phases.measure("sample"):
            return sequence.accept(logits_V)

    def take(sequence: SequenceState, token: int, peak: float) -> str:
        with session.phases.measure("sample"):
            return sequence.take(token, peak)

    while True:
        for place, cache in enumerate(session.caches):
            while rows[place] is None and waiting:
                sequence = waiting.pop()
                cache.truncate(_shared(cache.token_ids, sequence.prompt) if keep_prefix else 0)
                text = accept(sequence, session.prefill(sequence.prompt[cache.length :], cache))
                rows[place] = None if sequence.finish_reason else sequence
                left[place] = _state(cache)
                yield sequence, text
        if not any(rows):
            return
        for place, cache in enumerate(session.caches):
            if rows[place] is not None and left[place] != _state(cache):
                raise SessionBusy(
                    f"row {cache.row} of the session holds other tokens than this run left there: give each "
                    "run that is under way a session of its own"
                )
        # rows that have nothing left to do stay, idle: another batch size would be another plan
        tokens = [[sequence.token_ids[-1] if sequence else 0] for sequence in rows]
        active = [cache if sequence else None for sequence, cache in zip(rows, session.caches, strict=True)]
        choices = _choices(rows, 0) if session.runs_ahead else None
        if choices is None:
            logits_BV = session.step(tokens, active)
        else:
            chosen = session.step_chosen(tokens, active, choices, _choices(rows, 1))
        left = [_state(cache) for cache in session.caches]
        for place, running in enumerate(rows):
            if running is not None:
                text = accept(running, logits_BV[place]) if choices is None else take(running, *chosen[place])
                rows[place] = None if running.finish_reason else running
                yield running, text


def _state(cache: Cache) -> tuple[int, int]:
    """What changes whenever a row is written or cut."""
    return cache.version, cache.length


def _choices(rows: Sequence[SequenceState | None], ahead: int) -> list[RowChoice] | None:
    """How the device chooses the tokens that come after so many others; None where one row's it may not."""
    choices = [sequence.choice(ahead) if sequence else RowChoice() for sequence in rows]
    given = [choice for choice in choices if choice is not None]
    return given if len(given) == len(choices) else None


def _shared(held: Sequence[int], prompt: Sequence[int]) -> int:
    """Tokens of a prompt that a row holds already; the last is always run, for its logits."""
    longest = min(len(held), len(prompt) - 1)
    return next((n for n in range(longest) if held[n] != prompt[n]), longest)
