"""How fast is a decode step, beside transformers' own loop on the same machine?

Qwen2-0.5B's shape with random weights, greedy, batch 1, 128 tokens held: eight tokens a run, interleaved
with the same eight by transformers (its default attention and dynamic cache, one ``forward`` a token).
"""

import argparse
from statistics import median

import torch
from measure import interleaved, machine, median_ratio, read_bandwidth, report
from shapes import QWEN2_0_5B, random_decoder, weight_bytes
from transformers import DynamicCache, Qwen2Config, Qwen2ForCausalLM

from fuel_core.cache import CachePool
from fuel_core.decode import DecodeSession, EagerBackend

HELD_TOKENS, NEW_TOKENS = 128, 8


def fuel_side(dtype: torch.dtype) -> tuple[DecodeSession, int]:
    decoder = random_decoder(dtype)
    pool = CachePool(decoder.plan.cache, rows=1, capacity=256, dtype=decoder.plan.numerics.cache)
    session = DecodeSession(decoder, [pool.acquire()], EagerBackend(), strict=True)
    session.prefill([1] * HELD_TOKENS)
    return session, weight_bytes(decoder) + HELD_TOKENS * pool.bytes_per_token


def fuel_run(session: DecodeSession) -> None:
    token = 1
    for _ in range(NEW_TOKENS):
        token = int(session.step([[token]])[0].argmax())
    session.caches[0].truncate(HELD_TOKENS)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--json", action="store_true")
    arguments.add_argument("--rounds", type=int, default=11)
    arguments.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16", "float16"])
    asked = arguments.parse_args()
    dtype = getattr(torch, asked.dtype)

    session, read_bytes = fuel_side(dtype)
    config = Qwen2Config(**{key: value for key, value in QWEN2_0_5B.items() if key != "rope_theta"})
    theirs = Qwen2ForCausalLM(config).to(dtype).eval()
    cache = DynamicCache(config=config)

    def transformers_run() -> None:
        token = torch.ones(1, 1, dtype=torch.int64)
        for _ in range(NEW_TOKENS):
            logits = theirs(token, past_key_values=cache, use_cache=True).logits
            token = logits[:, -1].argmax(-1, keepdim=True)
        cache.crop(-NEW_TOKENS)

    with torch.no_grad():
        theirs(torch.ones(1, HELD_TOKENS, dtype=torch.int64), past_key_values=cache, use_cache=True)
        seconds = interleaved(
            {"fuel": lambda: fuel_run(session), "transformers": transformers_run}, asked.rounds
        )
    probe = read_bandwidth()
    bandwidth = median(probe() for _ in range(5))
    step = median(seconds["fuel"]) / NEW_TOKENS
    report(
        {
            "ratio": median_ratio(seconds["transformers"], seconds["fuel"]),
            "tokens_per_s": 1 / step,
            "transformers_tokens_per_s": NEW_TOKENS / median(seconds["transformers"]),
            "gb_per_s": read_bytes / step / 1e9,
            "share_of_read_bandwidth": read_bytes / step / bandwidth,
            "numerics": str(session.decoder.plan.numerics),
            **machine(),
        },
        asked.json,
    )


if __name__ == "__main__":
    main()
