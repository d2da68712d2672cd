"""Loading takes the model's memory and one shard's, no more; seen from outside, in a fresh process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from fuel_core.family import Family
from fuel_core.weights.names import sources

SHARDS = 6
SLACK_BYTES = 100_000_000

CONFIG = {
    "model_type": "qwen2",
    "vocab_size": 8_000,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 9,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "max_position_embeddings": 1024,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": True,
}
"""About 145 million parameters: 290 MB at two bytes."""

CHILD = """
import json, sys
import torch, fuel_core, fuel_core.loading, safetensors.torch
# not ru_maxrss, which begins with the peak of the parent
peak = lambda: int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) * 1024
before = peak()
model = fuel_core.load(sys.argv[1], dtype=sys.argv[2])
held = sum(p.nbytes for p in model.decoder.parameters())
print(json.dumps({"peak": peak() - before, "held": held}))
"""


def write_shards(family: Family, folder: Path, dtype: torch.dtype) -> None:
    config, _ = family.config.read(CONFIG, source="test")
    with torch.device("meta"):
        decoder = family.build(config, family.plan(config, family.options()))
    shapes = {source.tensor: source.shape for source in sources(decoder, family.weights)}
    index = {}
    for shard in range(SHARDS):
        # dealt out one by one, so that the parts of a fused parameter lie in different shards
        names = list(shapes)[shard::SHARDS]
        file = f"model-{shard + 1:05}-of-{SHARDS:05}.safetensors"
        save_file({name: torch.ones(shapes[name], dtype=dtype) for name in names}, folder / file)
        index |= dict.fromkeys(names, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    (folder / "config.json").write_text(json.dumps(CONFIG))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
@pytest.mark.parametrize(("stored", "held"), [("bfloat16", "bfloat16"), ("float32", "bfloat16")])
def test_peak_is_the_model_and_one_shard(qwen2: Family, tmp_path: Path, stored: str, held: str) -> None:
    """Loaders that kept every shard mapped, or made a random model first, needed twice the memory."""
    write_shards(qwen2, tmp_path, getattr(torch, stored))
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path), held], capture_output=True, text=True, check=True
    )
    memory = json.loads(child.stdout)
    shard = max(path.stat().st_size for path in tmp_path.glob("*.safetensors"))
    assert memory["held"] > 250_000_000
    assert memory["peak"] <= memory["held"] + shard + SLACK_BYTES, (memory, shard)
