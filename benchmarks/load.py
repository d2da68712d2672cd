"""What does loading cost beyond reading the bytes once, in time and in memory?

A bfloat16 checkpoint of Qwen2-0.5B's shape (1 GB) in four shards, made in a temporary folder. Reading
is ``read()`` of every file into fresh memory, as any loader must have; both sides run interleaved with
the files in the page cache. Memory is the peak of a fresh process above its imports, less the model's
bytes and those of the largest shard (Linux only).
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import torch
from measure import interleaved, machine, median_ratio, report
from safetensors.torch import load_file, save_file
from shapes import QWEN2_0_5B, random_decoder, shards

import fuel_core
from fuel_core.registry import Registry
from fuel_core.weights.save import save_checkpoint

SHARDS = 4


def make_checkpoint(folder: Path) -> None:
    decoder = random_decoder(torch.bfloat16)
    names = Registry.discover().family("qwen2").weights
    save_checkpoint(folder, decoder, names, QWEN2_0_5B, dtype=torch.bfloat16)
    whole = folder / "model.safetensors"
    tensors = load_file(whole)
    whole.unlink()
    index = {}
    for shard in range(SHARDS):
        file = f"model-{shard + 1:05}-of-{SHARDS:05}.safetensors"
        part = {name: tensors[name] for name in list(tensors)[shard::SHARDS]}
        save_file(part, folder / file)
        index |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))


def read_once(folder: Path) -> None:
    """Hold all bytes of the checkpoint in memory once."""
    held = [path.read_bytes() for path in shards(folder)]
    assert held


def load_in_this_process(folder: Path) -> None:
    """Load, and print the peak memory above what the imports took, and the model's bytes."""
    before = peak_bytes()
    model = fuel_core.load(folder)
    held = sum(parameter.nbytes for parameter in model.decoder.parameters())
    print(json.dumps({"peak_bytes": peak_bytes() - before, "model_bytes": held}))


def peak_bytes() -> int:
    """The peak of this process's own memory; ``ru_maxrss`` would begin with that of its parent."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--json", action="store_true")
    arguments.add_argument("--rounds", type=int, default=7)
    arguments.add_argument("--load", type=Path, help=argparse.SUPPRESS)
    asked = arguments.parse_args()
    if asked.load is not None:
        load_in_this_process(asked.load)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        make_checkpoint(folder)
        child = subprocess.run(
            [sys.executable, __file__, "--load", str(folder)], capture_output=True, text=True, check=True
        )
        memory = json.loads(child.stdout)
        largest = max(path.stat().st_size for path in shards(folder))
        stored = sum(path.stat().st_size for path in shards(folder))
        seconds = interleaved(
            {"load": lambda: fuel_core.load(folder), "read": lambda: read_once(folder)}, asked.rounds
        )
    report(
        {
            "time_ratio": median_ratio(seconds["load"], seconds["read"]),
            "load_s": median(seconds["load"]),
            "read_s": median(seconds["read"]),
            "load_gb_per_s": stored / median(seconds["load"]) / 1e9,
            "peak_extra_mb": (memory["peak_bytes"] - memory["model_bytes"] - largest) / 1e6,
            "model_mb": memory["model_bytes"] / 1e6,
            "largest_shard_mb": largest / 1e6,
            **machine(),
        },
        asked.json,
    )


if __name__ == "__main__":
    main()
