"""Compile the Triton kernels for a GPU that need not be there, at the launches that their entries make.

Run as a program, without TRITON_INTERPRET; prints one JSON object: kernel -> matrix instructions of each
launch.
"""

import json
from collections import defaultdict
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction, mangle_type

from fuel_core.ops.triton.attention import attend_splits
from fuel_core.ops.triton.experts import by_choice, grouped
from fuel_core.ops.triton.gate import gated
from fuel_core.ops.triton.latent import attend_latent_splits
from fuel_core.ops.triton.norm import add_rms_norm, rms_norm
from fuel_core.ops.triton.rotation import rotate_heads
from fuel_core.ops.triton.routing import route
from fuel_core.ops.triton.tiling import padded, split_tiling

HOPPER = GPUTarget("cuda", 90, 32)
OPTIONS = ("num_warps", "num_stages")
compiled: dict[str, list[int]] = defaultdict(list)


def compile_instead(kernel: Any, *arguments: Any, grid: Any, warmup: bool, **named: Any) -> None:
    """In place of a launch."""
    options = {name: named.pop(name) for name in OPTIONS if name in named}
    values = dict(zip(kernel.arg_names, arguments, strict=False)) | named
    constants = {param.name for param in kernel.params if param.is_constexpr}
    source = ASTSource(
        fn=kernel,
        signature={n: "constexpr" if n in constants else mangle_type(values[n]) for n in kernel.arg_names},
        constexprs={(i,): values[n] for i, n in enumerate(kernel.arg_names) if n in constants},
        attrs={
            (i,): [["tt.divisibility", 16]]
            for i, n in enumerate(kernel.arg_names)
            if n not in constants
            and (isinstance(values[n], torch.Tensor) or (isinstance(values[n], int) and values[n] % 16 == 0))
        },
    )
    binary = triton.compile(source, target=HOPPER, options=options)
    compiled[kernel.__name__].append(binary.asm["ptx"].count("mma.sync"))


def attend_once(groups: int, members: int, dim: int, dtype: torch.dtype) -> None:
    q, new = (torch.empty(1, 1, heads, dim, dtype=dtype) for heads in (groups * members, groups))
    pool = torch.empty(2, groups, 4096, dim, dtype=dtype)
    tiling = split_tiling(
        batch=1,
        groups=groups,
        members=members,
        capacity=4096,
        columns=2 * padded(dim),
        itemsize=dtype.itemsize,
        processors=132,
    )
    place = torch.zeros(1, dtype=torch.int64), torch.zeros(1, 1, dtype=torch.int64), torch.tensor(7)
    attend_splits(q, new, new, pool, pool, *place, 0.1, 50.0, tiling)


def attend_latents(rank: int, rotary: int, dtype: torch.dtype) -> None:
    width = rank + rotary
    shapes = ((1, 1, 16, width), (1, 1, width), (2, 64, width))
    q, new, pool = (torch.empty(shape, dtype=dtype) for shape in shapes)
    tiling = split_tiling(
        batch=1,
        groups=1,
        members=16,
        capacity=64,
        columns=padded(rank) + padded(rotary),
        itemsize=dtype.itemsize,
        processors=132,
    )
    place = torch.zeros(1, dtype=torch.int64), torch.zeros(1, 1, dtype=torch.int64), torch.tensor(7)
    attend_latent_splits(q, new, pool, *place, 0.1, rank, tiling)


def evaluate_experts(model: int, inner: int, dtype: torch.dtype) -> None:
    x, gate_up, down = (
        torch.empty(shape, dtype=dtype) for shape in ((2, model), (4, 2 * inner, model), (4, model, inner))
    )
    ids, weights = torch.tensor([[0, 1], [2, 3]]), torch.ones(2, 2)
    by_choice(x, gate_up, down, ids, weights, "gelu")
    grouped(x, gate_up, down, ids, weights, "silu")


def fuse(dtype: torch.dtype) -> None:
    x, weight, projected = torch.empty(1, 1, 896, dtype=dtype), torch.ones(896), torch.empty(1, 2, 16, 64)
    rms_norm(x, weight, 1e-6)
    add_rms_norm(x, x, weight, 1e-6)
    gated(torch.empty(1, 1, 9728, dtype=dtype), "gelu")
    for interleaved in (False, True):
        route(torch.empty(2, 60), None, chosen=4, softmax=interleaved, normalise=True, scale=1.0)
        rotate_heads(projected.to(dtype)[:, :, :14], *torch.empty(2, 1, 2, 1, 24), interleaved=interleaved)


if __name__ == "__main__":
    JITFunction.run = compile_instead
    attend_once(8, 4, 128, torch.bfloat16)
    attend_once(2, 7, 80, torch.float16)
    attend_once(2, 1, 64, torch.float32)
    attend_latents(512, 64, torch.bfloat16)
    evaluate_experts(2048, 768, torch.bfloat16)
    fuse(torch.bfloat16)
    print(json.dumps(compiled))
