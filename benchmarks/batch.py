"""Does a batch decode faster than its prompts one after another?

32 prompts of different lengths in Qwen2-0.5B's shape, greedy: in batches of 8, and one at a time. Both
sides run interleaved; prefill, which is never batched, is left out of both.
"""

import argparse
from statistics import median

import torch
from measure import interleaved, machine, median_ratio, report
from shapes import random_decoder

from fuel_core.cache import CachePool
from fuel_core.decode import DecodeSession, EagerBackend

PROMPTS, NEW_TOKENS = 32, 16


def decode(session: DecodeSession, rows: int) -> None:
    """Decode NEW_TOKENS for every prompt, ``rows`` at a time, from what the rows hold."""
    lengths = [cache.length for cache in session.caches]
    for start in range(0, PROMPTS, rows):
        caches = session.caches[start : start + rows]
        tokens = [[1]] * rows
        for _ in range(NEW_TOKENS):
            tokens = session.step(tokens, caches).argmax(-1, keepdim=True).tolist()
    for cache, length in zip(session.caches, lengths, strict=True):
        cache.truncate(length)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--json", action="store_true")
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16", "float16"])
    arguments.add_argument("--batch", type=int, default=8)
    asked = arguments.parse_args()

    decoder = random_decoder(getattr(torch, asked.dtype))
    pool = CachePool(decoder.plan.cache, rows=PROMPTS, capacity=128, dtype=decoder.plan.numerics.cache)
    session = DecodeSession(decoder, [pool.acquire() for _ in range(PROMPTS)], EagerBackend())
    draw = torch.Generator().manual_seed(0)
    for row, cache in enumerate(session.caches):
        session.prefill(torch.randint(0, 150_000, (8 + 2 * row,), generator=draw).tolist(), cache)
    seconds = interleaved(
        {"alone": lambda: decode(session, 1), "batched": lambda: decode(session, asked.batch)}, asked.rounds
    )
    tokens = PROMPTS * NEW_TOKENS
    report(
        {
            "ratio": median_ratio(seconds["alone"], seconds["batched"]),
            "alone_tokens_per_s": tokens / median(seconds["alone"]),
            "batched_tokens_per_s": tokens / median(seconds["batched"]),
            "batch": asked.batch,
            "plans": session.counters.plans,
            "numerics": str(decoder.plan.numerics),
            **machine(),
        },
        asked.json,
    )


if __name__ == "__main__":
    main()
