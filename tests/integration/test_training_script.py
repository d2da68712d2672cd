"""The script that makes bundled checkpoints, run on a text that a tiny model learns by heart."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import fuel_core
from fuel_core.registry import Registry

SCRIPT = Path(__file__).parents[2] / "training" / "train.py"
SENTENCE = "The quick brown fox jumps over the lazy dog, and the dog sleeps on.\n"
FAMILIES = [card.name for card in Registry.discover().cards if card.bundled]


def command(folder: Path, family: str, *options: str) -> list[str]:
    """A run over 100 paragraphs of one sentence, by a family's first tiny config."""
    tiny = next(iter(Registry.discover().family(family).tiny.values()))
    config, text = folder / f"{family}.json", folder / "text.txt"
    # 257 tokens are the bytes and the end of text; 263 leave six merges to learn
    trained = {
        "vocab_size": 263,
        "eos_token_id": 262,
        "torch_dtype": "float32",
        "max_position_embeddings": 128,
    }
    config.write_text(json.dumps({**tiny, **trained}))
    text.write_text("\n".join(SENTENCE * 10 for _ in range(100)))
    return [
        sys.executable, str(SCRIPT), "--family", family, "--config", str(config), "--text", str(text),
        "--step-tokens", "256", "--window-tokens", "64", "--report-steps", "20", *options,
    ]  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_learns_a_sentence_by_heart(tmp_path: Path, family: str) -> None:
    folder = tmp_path / "out"
    subprocess.run(
        command(tmp_path, family, "--tokens", "20000", "--prompt", "The quick", "--output", str(folder)),
        check=True,
    )
    model = fuel_core.load(folder)
    assert ("The quick" + model.generate("The quick", max_tokens=80).text).startswith(SENTENCE)
    card = (folder / "README.md").read_text()
    perplexity = re.search(r"held-out perplexity \| \*\*([\d.]+)", card)
    assert perplexity is not None
    assert float(perplexity[1]) < 3  # 263 before the first step
    assert not (folder / "training-state.pt").exists()


def test_a_resumed_run_ends_with_the_weights_of_one_that_was_never_cut(tmp_path: Path) -> None:
    """Guards what a resumed run must restore: weights, both optimisers, the generator, the schedule."""
    run = command(tmp_path, "qwen2", "--tokens", "12000")
    subprocess.run([*run, "--output", str(tmp_path / "whole")], check=True)

    cut = tmp_path / "cut"
    with subprocess.Popen([*run, "--output", str(cut)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.readline()  # the first report: the state is saved
        process.send_signal(signal.SIGKILL)
    assert (cut / "training-state.pt").exists(), "the run ended before it was cut"
    refused = subprocess.run([*run, "--output", str(cut)], capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert "--resume" in refused.stderr

    subprocess.run([*run, "--output", str(cut), "--resume"], check=True)
    assert (cut / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()


def test_without_the_text_the_error_names_the_package(tmp_path: Path) -> None:
    run = command(tmp_path, "qwen2", "--tokens", "100", "--output", str(tmp_path / "out"))
    without_text = [word for word in run if word not in ("--text", str(tmp_path / "text.txt"))]
    ended = subprocess.run(without_text, env={"PATH": ""}, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "apt-get install bible-kjv" in ended.stderr
    assert "Traceback" not in ended.stderr
