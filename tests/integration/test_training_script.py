"""The script that makes bundled checkpoints, run on a text that a tiny model learns by heart."""

import json
import re
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import fuel_core
from fuel_core.registry import Registry

SCRIPT = Path(__file__).parents[2] / "training" / "train.py"
SENTENCE = "The quick brown fox jumps over the lazy dog, and the dog sleeps on.\n"
FAMILIES = [card.name for card in Registry.discover().cards if card.bundled]


Runner = Callable[[list[str]], object]
"""Command -> exit status."""


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch) -> Iterator[Runner]:
    """Runs a command in this process, which has torch: an interpreter needs longer to import it than these
    models to learn."""
    monkeypatch.syspath_prepend(SCRIPT.parent)
    modules = [path.stem for path in SCRIPT.parent.glob("*.py")]

    def run(words: list[str]) -> object:
        assert words[:2] == [sys.executable, str(SCRIPT)]
        monkeypatch.setattr(sys, "argv", words[1:])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(SCRIPT), run_name="__main__")
        return ended.value.code

    assert sys.modules.keys().isdisjoint(modules)
    yield run
    for module in modules:
        sys.modules.pop(module, None)


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
def test_a_family_learns_a_sentence_by_heart(train: Runner, tmp_path: Path, family: str) -> None:
    folder = tmp_path / "out"
    run = command(tmp_path, family, "--tokens", "20000", "--prompt", "The quick", "--output", str(folder))
    assert train(run) == 0
    model = fuel_core.load(folder)
    assert ("The quick" + model.generate("The quick", max_tokens=80).text).startswith(SENTENCE)
    card = (folder / "README.md").read_text()
    perplexity = re.search(r"held-out perplexity \| \*\*([\d.]+)", card)
    assert perplexity is not None
    assert float(perplexity[1]) < 3  # 263 before the first step
    assert not (folder / "training-state.pt").exists()


def test_a_resumed_run_ends_with_the_weights_of_one_that_was_never_cut(
    train: Runner, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Guards what a resumed run must restore: weights, both optimisers, the generator, the schedule."""
    run = command(tmp_path, "qwen2", "--tokens", "12000")
    assert train([*run, "--output", str(tmp_path / "whole")]) == 0

    cut = tmp_path / "cut"
    with subprocess.Popen([*run, "--output", str(cut)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.readline()  # the first report: the state is saved
        process.send_signal(signal.SIGKILL)
    assert (cut / "training-state.pt").exists(), "the run ended before it was cut"
    assert train([*run, "--output", str(cut)]) == 1
    assert "--resume" in capsys.readouterr().err

    assert train([*run, "--output", str(cut), "--resume"]) == 0
    assert (cut / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()


def test_without_the_text_the_error_names_the_package(
    train: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = command(tmp_path, "qwen2", "--tokens", "100", "--output", str(tmp_path / "out"))
    monkeypatch.setenv("PATH", "")
    assert train([word for word in run if word not in ("--text", str(tmp_path / "text.txt"))]) == 1
    assert "apt-get install bible-kjv" in capsys.readouterr().err
