"""The generation loop: prefill, then one planned step a token."""

from collections.abc import Collection, Generator, Sequence
from typing import Literal

from fuel_core.cache import Cache
from fuel_core.decode import DecodeSession
from fuel_core.generate.sampling import Sampler

FinishReason = Literal["stop", "length"]


def generate_tokens(
    session: DecodeSession,
    cache: Cache,
    prompt: Sequence[int],
    sampler: Sampler,
    *,
    max_tokens: int,
    stop_token_ids: Collection[int],
) -> Generator[int, None, FinishReason]:
    """Yield generated token ids, a stop token included, and return why it ended.

    The last token is not fed back: the cache then holds the prompt and all tokens before it.
    """
    logits_V = session.prefill(prompt, cache)
    for count in range(1, max_tokens + 1):
        with session.phases.measure("sample"):
            token = sampler(logits_V)
        yield token
        if token in stop_token_ids:
            return "stop"
        if count < max_tokens:
            logits_V = session.step([[token]], (cache,))[0]
    return "length"
