"""How near does a decode step of routed experts come to reading their bytes?

One layer of DeepSeek-V2-Lite's shape with random weights: 64 experts of 1408 hidden units, six a token, and
two shared ones. A step must read the six chosen experts, the shared ones and the router, and nothing else;
its rate is held against a read probe of the same round. Tokens differ, so that no expert lies in a cache.
"""

import argparse
from statistics import median
from time import perf_counter
from typing import Any

import torch
from measure import machine, read_bandwidth, report
from shapes import numerics
from torch import nn

from fuel_core.blocks import moe
from fuel_core.plans import GatedMLPPlan, MoEPlan, RouterPlan

HIDDEN = 2048
V2_LITE = MoEPlan(
    router=RouterPlan(experts=64, chosen=6, scoring="softmax", normalise=False),
    expert_width=1408,
    activation="silu",
    shared=GatedMLPPlan(width=2816, activation="silu"),
    shared_gate=False,
)
TOKENS = 8
"""A round: about as many bytes as the probe reads."""


def random_layer(dtype: torch.dtype) -> nn.Module:
    with torch.device("meta"):
        layer = moe(HIDDEN, V2_LITE)
    for module in layer.modules():
        for name, parameter in module.named_parameters(recurse=False):
            value = torch.empty(parameter.shape, dtype=module.weight_rules[name].dtype(dtype))
            setattr(module, name, nn.Parameter(value.normal_(0, 0.02), requires_grad=False))
    return layer.eval()


def bytes_read(layer: nn.Module) -> int:
    """Of weights, by one token."""
    router = V2_LITE.router
    return sum(
        parameter.nbytes * router.chosen // router.experts
        if path.startswith("experts.")
        else parameter.nbytes
        for path, parameter in layer.named_parameters()
    )


@torch.no_grad()
def measured(dtype: torch.dtype, rounds: int) -> dict[str, Any]:
    layer, probe = random_layer(dtype), read_bandwidth()
    activations = numerics(dtype).activations
    bandwidths, seconds = [], []
    for _ in range(rounds + 1):
        tokens = torch.randn(TOKENS, 1, 1, HIDDEN).to(activations)
        bandwidths.append(probe())
        start = perf_counter()
        for x_BTM in tokens:
            layer(x_BTM)
        seconds.append((perf_counter() - start) / TOKENS)
    size = bytes_read(layer)
    rates = [size / second for second in seconds[1:]]  # the first round is the warm-up
    return {
        "share": median(rate / read for rate, read in zip(rates, bandwidths[1:], strict=True)),
        "ms": median(seconds[1:]) * 1e3,
        "gb_s": median(rates) / 1e9,
        "read_gb_s": median(bandwidths[1:]) / 1e9,
        "mb_a_token": size / 1e6,
        "activations": str(activations).removeprefix("torch."),
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--json", action="store_true")
    arguments.add_argument("--rounds", type=int, default=15)
    asked = arguments.parse_args()
    bfloat16 = measured(torch.bfloat16, asked.rounds)
    float32 = measured(torch.float32, asked.rounds)
    report({**bfloat16, "float32": float32, "plan": str(V2_LITE), **machine()}, asked.json)


if __name__ == "__main__":
    main()
