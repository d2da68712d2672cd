"""Does a decode step cost what it attends, or what its cache could hold?

Qwen2-0.5B's shape, 128 tokens held, in a cache of 256 tokens and in one of 32,768: interleaved steps,
the median over rounds of the ratio of their times.
"""

import argparse
from statistics import median

import torch
from measure import interleaved, machine, median_ratio, read_bandwidth, report
from shapes import random_decoder, weight_bytes

from fuel_core.cache import CachePool
from fuel_core.decode import DecodeSession, EagerBackend

HELD_TOKENS = 128
CAPACITIES = {"small": 256, "large": 32_768}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--json", action="store_true")
    arguments.add_argument("--rounds", type=int, default=21)
    arguments.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16", "float16"])
    asked = arguments.parse_args()

    decoder = random_decoder(getattr(torch, asked.dtype))
    prompt = torch.randint(0, decoder.plan.vocab_size, (HELD_TOKENS,)).tolist()
    sessions = {}
    for name, capacity in CAPACITIES.items():
        pool = CachePool(decoder.plan.cache, rows=1, capacity=capacity, dtype=decoder.plan.numerics.cache)
        sessions[name] = DecodeSession(decoder, [pool.acquire()], EagerBackend(), strict=True)
        sessions[name].prefill(prompt)

    def step(session: DecodeSession) -> None:
        session.step([[1]])
        session.caches[0].truncate(HELD_TOKENS)

    seconds = interleaved(
        {name: lambda session=session: step(session) for name, session in sessions.items()},  # type: ignore[misc]
        asked.rounds,
    )
    probe = read_bandwidth()
    bandwidth = median(probe() for _ in range(5))
    read = weight_bytes(decoder) + HELD_TOKENS * sessions["large"].pool.bytes_per_token
    rate = read / median(seconds["large"])
    report(
        {
            "ratio": median_ratio(seconds["large"], seconds["small"]),
            "small_ms": median(seconds["small"]) * 1e3,
            "large_ms": median(seconds["large"]) * 1e3,
            "tokens_per_s": 1 / median(seconds["large"]),
            "gb_per_s": rate / 1e9,
            "share_of_read_bandwidth": rate / bandwidth,
            "held_tokens": HELD_TOKENS,
            "capacities": list(CAPACITIES.values()),
            "numerics": str(decoder.plan.numerics),
            **machine(),
        },
        asked.json,
    )


if __name__ == "__main__":
    main()
