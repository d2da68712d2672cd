"""Which form of latent attention is faster, and from how many tokens on?

V2-Lite's attention layer (16 heads, latents of 512, bfloat16 weights where the CPU multiplies them) over a
cache that holds 128 to 16,384 tokens: a decode step of one token, and prefill steps of 64 to 512 tokens.
Both forms are interleaved; the ratio is expanded to absorbed.
"""

import argparse
from dataclasses import replace
from statistics import median
from typing import Any

import torch
from measure import interleaved, machine, median_ratio, read_bandwidth, report
from shapes import numerics

from fuel_core.blocks import LatentAttention
from fuel_core.cache import CachePool
from fuel_core.plans import (
    UNBOUNDED,
    CacheSpec,
    LatentAttentionPlan,
    LatentSlots,
    NormPlan,
    RopeVariant,
    visible,
)
from fuel_core.rotary import RopeTable
from fuel_core.step import CachedLayerStep

HIDDEN, ATTENDED, CHUNKS = 2048, (128, 1024, 4096, 16_384), (64, 128, 256, 512)
CHUNK_ATTENDS = 4096
PLAN = LatentAttentionPlan(
    heads=16,
    nope_dim=128,
    rope_dim=64,
    value_dim=128,
    kv_rank=512,
    q_rank=None,
    scale=192**-0.5,
    norm=NormPlan("rms", 1e-6),
    bias=False,
    form="auto",
)


class Layer:
    """One attention layer with random weights, and a full cache."""

    def __init__(self, dtype: torch.dtype) -> None:
        resolved = numerics(dtype)
        self.dtype = resolved.activations
        draw = torch.Generator().manual_seed(0)
        self.blocks = {
            form: LatentAttention(HIDDEN, replace(PLAN, form=form)) for form in ("absorbed", "expanded")
        }
        for name, parameter in self.blocks["absorbed"].named_parameters():
            value = torch.empty_like(parameter).normal_(0, 0.02, generator=draw)
            kept = torch.float32 if "norm" in name else resolved.weights
            parameter.data = value.to(kept)
            self.blocks["expanded"].get_parameter(name).data = parameter.data
        spec = CacheSpec.uniform(LatentSlots(PLAN.kv_rank, PLAN.rope_dim), 1)
        self.pool = CachePool(spec, rows=1, capacity=ATTENDED[-1], dtype=resolved.cache)
        self.pool.layers[0].tensors[0].normal_(0, 1, generator=draw)
        self.table = RopeTable.of(
            RopeVariant(base=1e4, width=PLAN.rope_dim, layout="interleaved"), torch.device("cpu")
        )

    def step(self, form: str, tokens: int, attended: int) -> torch.Tensor:
        positions = torch.arange(attended - tokens, attended)[None]
        window = torch.tensor(UNBOUNDED)
        mask = None if tokens == 1 else visible(positions[0, :, None], torch.arange(attended), window)
        rows = self.table.rows(positions, torch.tensor([0]))
        step = CachedLayerStep(rows, self.pool.layers[0], torch.tensor([0]), positions, window, mask)
        x = torch.ones(1, tokens, HIDDEN, dtype=self.dtype)
        out: torch.Tensor = self.blocks[form](x, step)
        return out


def compare(layer: Layer, tokens: int, attended: int, rounds: int) -> dict[str, float]:
    sides = {form: lambda form=form: layer.step(form, tokens, attended) for form in layer.blocks}
    seconds = interleaved(sides, rounds)
    return {
        "ratio": median_ratio(seconds["expanded"], seconds["absorbed"]),
        "absorbed_ms": 1e3 * median(seconds["absorbed"]),
        "expanded_ms": 1e3 * median(seconds["expanded"]),
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--json", action="store_true")
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16"])
    asked = arguments.parse_args()
    layer = Layer(getattr(torch, asked.dtype))
    with torch.no_grad():
        decode = {str(held): compare(layer, 1, held, asked.rounds) for held in ATTENDED}
        prefill = {str(tokens): compare(layer, tokens, CHUNK_ATTENDS, asked.rounds) for tokens in CHUNKS}
    probe = read_bandwidth()
    latents = ATTENDED[-1] * (PLAN.kv_rank + PLAN.rope_dim) * layer.pool.dtype.itemsize
    weights = sum(parameter.nbytes for parameter in layer.blocks["absorbed"].parameters())
    step_s = decode[str(ATTENDED[-1])]["absorbed_ms"] / 1e3
    result: dict[str, Any] = {
        "ratio_at_16384": decode["16384"]["ratio"],
        "decode": decode,
        "prefill_over_4096": prefill,
        "break_even_tokens_by_plan": next(n for n in range(1, 4096) if not PLAN.absorbs(n)),
        "gb_per_s_at_16384": (latents + weights) / step_s / 1e9,
        "read_gb_per_s": median(probe() for _ in range(5)) / 1e9,
        "numerics": str(numerics(getattr(torch, asked.dtype))),
        **machine(),
    }
    report(result, asked.json)


if __name__ == "__main__":
    main()
