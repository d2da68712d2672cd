"""``fuel run``: what it prints, and how it refuses."""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from fuel_core.cli.app import app
from fuel_core.cli.prompt_text import prompt_text

runner = CliRunner()


def fuel(*arguments: object) -> tuple[int, str, str]:
    result = runner.invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.stdout, result.stderr


def test_streams_text_and_ends_with_a_line_of_speed(checkpoint: Callable[..., Path]) -> None:
    status, out, err = fuel("run", checkpoint(), "Hello", "--max-tokens", 8, "--strict")
    assert status == 0
    assert out.endswith("\n")
    assert "[8 tokens (length)" in err
    assert "tokens/s" in err
    assert "plans 1]" in err


def test_json_is_the_whole_result(checkpoint: Callable[..., Path]) -> None:
    folder = checkpoint()
    status, out, _ = fuel("run", folder, "Hello", "--max-tokens", 8, "--json")
    result = json.loads(out)
    assert status == 0
    assert set(result) >= {"text", "token_ids", "finish_reason", "timings", "counters"}
    assert len(result["token_ids"]) == 8
    assert result["counters"]["plans"] == 1
    assert fuel("run", folder, "Hello", "--max-tokens", 8)[1].rstrip("\n") == result["text"].rstrip("\n")


def test_a_seed_repeats(checkpoint: Callable[..., Path]) -> None:
    folder = checkpoint()
    arguments = ("run", folder, "Hello", "--max-tokens", 16, "--temperature", 3, "--json", "--seed")
    first, again, other = (json.loads(fuel(*arguments, seed)[1])["token_ids"] for seed in (1, 1, 2))
    assert first == again != other


def test_the_prompt_may_come_from_standard_input(checkpoint: Callable[..., Path]) -> None:
    folder = checkpoint()
    arguments = ["run", str(folder), "-", "--max-tokens", "4", "--json"]
    piped = json.loads(runner.invoke(app, arguments, input="Hello").stdout)
    assert (
        piped["token_ids"]
        == json.loads(fuel("run", folder, "Hello", "--max-tokens", 4, "--json")[1])["token_ids"]
    )


@pytest.mark.parametrize(
    ("piped", "text"),
    [(b"Hello", "Hello"), (b"Hello\n", "Hello"), (b"a\n\n", "a\n"), (b" a\r\nb \n", " a\r\nb ")],
)
def test_standard_input_is_one_text(piped: bytes, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newline that ``echo`` ends its text with was a token of the prompt."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(piped)))
    assert prompt_text("-") == text
    assert prompt_text("a\n") == "a\n"


@pytest.mark.parametrize(("prompt", "piped"), [("caf\udce9", None), ("-", b"caf\xe9 noir\n")])
def test_a_prompt_that_is_no_utf8_names_the_byte(
    checkpoint: Callable[..., Path], prompt: str, piped: bytes | None
) -> None:
    """An argument was refused in the words of Python's codec, standard input with a traceback."""
    result = runner.invoke(app, ["run", str(checkpoint()), prompt], input=piped)
    assert result.exit_code == 1
    assert "the prompt is not UTF-8: byte 0xe9 at character 4" in " ".join(result.stderr.split())


@pytest.mark.filterwarnings("default::fuel_core.errors.FuelWarning")
def test_device_and_options_reach_the_model(
    checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``fuel plan`` took a family's options and ``fuel run`` did not; a device nobody did."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)  # the default is a device that is not here
    folder = checkpoint("mixed-window", max_window_layers=1, layer_types=None)
    texts = [
        fuel("run", folder, "Hello" * 9, "--device", "cpu", "--option", f"window_layers={choice}")[:2]
        for choice in ("first", "last")
    ]
    assert [status for status, _ in texts] == [0, 0]
    assert texts[0] != texts[1]


Break = Callable[[Path], object]


@pytest.mark.parametrize(
    ("breakage", "named"),
    [
        (lambda f: (f / "config.json").unlink(), "config.json does not exist"),
        (
            lambda f: (f / "config.json").rename(f / "adapter_config.json"),
            "an adapter (LoRA) of another",
        ),
        (
            lambda f: (f / "config.json").rename(f / "a.gguf"),
            "not exist; it has a.gguf; fuel reads no GGUF",
        ),
        (lambda f: (f / "config.json").write_text("{no json"), "no valid JSON"),
        (lambda f: (f / "config.json").write_text('{"model_type": "mamba"}'), "mamba"),
        (lambda f: (f / "config.json").write_text('{"hidden_size": 3}'), "model_type"),
        (lambda f: (f / "model.safetensors").unlink(), "model.safetensors"),
        (lambda f: (f / "model.safetensors").write_bytes(b"version https://git-lfs"), "model.safetensors"),
        (
            lambda f: (f / "model.safetensors").write_bytes((f / "model.safetensors").read_bytes()[:-10]),
            "incomplete or corrupt",
        ),
        (lambda f: (f / "tokenizer.json").unlink(), "no tokenizer.json"),
    ],
)
def test_a_broken_folder_is_one_message(checkpoint: Callable[..., Path], breakage: Break, named: str) -> None:
    folder = checkpoint()
    breakage(folder)
    status, out, err = fuel("run", folder, "Hello")
    assert (status, out) == (1, "")
    assert err.startswith("error: ")
    assert named in " ".join(err.split())
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("",), "prompt is empty"),
        (("Hello", "--max-tokens", 4000), "256 positions"),
        (("x" * 300, "--max-tokens", 1), "300 tokens"),
        (("Hello", "--temperature", -1), "temperature is -1"),
        (("Hello", "--backend", "warp"), "'warp' is unknown"),
        (("Hello", "--dtype", "int3"), "int3"),
        (("Hello", "--device", "warp:9"), "device 'warp:9' cannot be used here"),
        (("Hello", "--device", "meta"), "device 'meta' cannot be used here"),
        (("Hello", "--option", "window_layers=frist"), "window_layers is 'frist'"),
    ],
)
def test_a_bad_request_is_one_message(
    checkpoint: Callable[..., Path], arguments: tuple[object, ...], named: str
) -> None:
    status, _, err = fuel("run", checkpoint(), *arguments)
    assert status == 1
    assert named in " ".join(err.split())


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("Hello", "--max-tokens", "many"),
        ("Hello", "--max-tokens", 0),
        ("Hello", "--option", "window_layers"),
    ],
)
def test_wrong_usage_is_status_two(checkpoint: Callable[..., Path], arguments: tuple[object, ...]) -> None:
    assert fuel("run", checkpoint(), *arguments)[0] == 2


@pytest.mark.parametrize("command", ["run", "chat"])
@pytest.mark.parametrize(
    ("backend", "named"), [("cudagraph", "needs a CUDA device"), ("fast", "known are eager, compiled")]
)
def test_a_backend_that_cannot_serve_is_refused_before_anything_is_loaded(
    command: str, backend: str, named: str
) -> None:
    """It was said once the weights had been read."""
    words = [command, "./no-such-folder", *(["x"] if command == "run" else []), "--backend", backend]
    done = CliRunner().invoke(app, words)
    assert (done.exit_code, named in done.stderr) == (1, True)
