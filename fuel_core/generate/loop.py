"""The generation loop: prompts are prefilled row by row, then every row takes one planned step.

A row that ends gives its place to the next prompt; there is no padding.
"""

from collections.abc import Iterator, Sequence

import torch

from fuel_core.cache import Cache
from fuel_core.decode import DecodeSession
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
    """
    waiting = list(reversed(sequences))
    free = list(reversed(session.caches))
    running: list[tuple[SequenceState, Cache]] = []

    def accept(sequence: SequenceState, logits_V: torch.Tensor) -> str:
        with session.phases.measure("sample"):
            return sequence.accept(logits_V)

    while waiting or running:
        while waiting and free:
            sequence, cache = waiting.pop(), free.pop()
            cache.truncate(_shared(cache.token_ids, sequence.prompt) if keep_prefix else 0)
            running.append((sequence, cache))
            yield sequence, accept(sequence, session.prefill(sequence.prompt[cache.length :], cache))
        free += [cache for sequence, cache in running if sequence.finish_reason]
        running = [(sequence, cache) for sequence, cache in running if not sequence.finish_reason]
        if running and not (waiting and free):
            caches = tuple(cache for _, cache in running)
            logits_BV = session.step([[sequence.token_ids[-1]] for sequence, _ in running], caches)
            for (sequence, _), logits_V in zip(running, logits_BV, strict=True):
                yield sequence, accept(sequence, logits_V)


def _shared(held: Sequence[int], prompt: Sequence[int]) -> int:
    """Tokens of a prompt that a row holds already; the last is always run, for its logits."""
    longest = min(len(held), len(prompt) - 1)
    return next((n for n in range(longest) if held[n] != prompt[n]), longest)
