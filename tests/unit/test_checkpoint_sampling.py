"""Sampling that a checkpoint's generation_config.json asks for, and what a caller says against it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers
from typer.testing import CliRunner

import fuel_core
from fuel_core.cli.app import app
from fuel_core.errors import ConfigError, FuelWarning, RequestError
from fuel_core.generate.checkpoint_sampling import checkpoint_sampling
from fuel_core.generate.sampling import Sampling

QWEN = {
    "bos_token_id": 1,
    "do_sample": True,
    "repetition_penalty": 1.1,
    "temperature": 0.7,
    "top_k": 20,
    "top_p": 0.8,
    "transformers_version": "4.37.0",
}


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        (None, Sampling()),
        ({}, Sampling()),
        ({"do_sample": False, "temperature": 0.7}, Sampling()),
        ({"temperature": 0.7, "top_k": 20}, Sampling()),
        ({"repetition_penalty": 1.3}, Sampling(repetition_penalty=1.3)),
        (QWEN, Sampling(temperature=0.7, top_k=20, top_p=0.8, repetition_penalty=1.1)),
        ({"do_sample": True}, Sampling(temperature=1.0, top_k=50)),
        ({"do_sample": True, "top_k": None, "temperature": None}, Sampling(temperature=1.0, top_k=50)),
        ({"do_sample": True, "top_k": 0, "min_p": 0.1}, Sampling(temperature=1.0, min_p=0.1)),
    ],
)
def test_keys_mean_what_they_mean_in_transformers(config: dict[str, Any] | None, wanted: Sampling) -> None:
    assert checkpoint_sampling(config) == wanted


def test_absent_keys_are_what_transformers_has() -> None:
    theirs = transformers.GenerationConfig._get_default_generation_params()
    ours = checkpoint_sampling({"do_sample": True})
    for key in ("temperature", "top_k", "top_p", "repetition_penalty"):
        assert getattr(ours, key) == theirs[key]
    assert theirs["do_sample"] is False


def test_what_fuel_does_not_do_is_said() -> None:
    with pytest.warns(FuelWarning, match="asks for num_beams, no_repeat_ngram_size, which fuel does not do"):
        checkpoint_sampling({"num_beams": 4, "no_repeat_ngram_size": 3, "typical_p": 1.0, "top_h": None})
    with pytest.warns(FuelWarning, match="asks for min_new_tokens, typical_p, which fuel does not do"):
        checkpoint_sampling({"do_sample": True, "typical_p": 0.9, "min_new_tokens": 5})
    checkpoint_sampling({"do_sample": False, "typical_p": 0.9})  # of what is drawn, and nothing is


def test_values_that_change_nothing_are_not_warned_of() -> None:
    checkpoint_sampling(transformers.GenerationConfig._get_default_generation_params())


def test_a_value_out_of_range_names_the_file() -> None:
    with pytest.raises(ConfigError, match=r"generation_config.json: top_p is 1.5"):
        checkpoint_sampling({"do_sample": True, "top_p": 1.5})


def test_what_is_asked_for_goes_before_what_is_wrong_in_the_file() -> None:
    """The message said "say how tokens are chosen", and whoever did was refused as well."""
    wrong = {"do_sample": True, "top_k": -1, "temperature": 0.5}
    assert checkpoint_sampling(wrong, {"top_k": 3}) == Sampling(temperature=0.5, top_k=3)
    with pytest.raises(RequestError, match="top_k is -2"):
        checkpoint_sampling(wrong, {"top_k": -2})
    with pytest.raises(RequestError, match="heat is no field of Sampling"):
        checkpoint_sampling({}, {"heat": 1})


@pytest.fixture
def folder(checkpoint: Callable[..., Path]) -> Path:
    made = checkpoint("dense")
    (made / "generation_config.json").write_text(
        json.dumps({"do_sample": True, "temperature": 30.0, "top_k": 0})
    )
    return made


def test_a_request_that_says_nothing_samples_as_the_checkpoint_asks(folder: Path) -> None:
    model = fuel_core.load(folder)
    assert model.default_sampling == Sampling(temperature=30.0)
    texts = {model.generate([5], max_tokens=20).token_ids for _ in range(3)}
    assert len(texts) == 3, "nothing was drawn"
    own = fuel_core.GenerationSettings(max_tokens=20, sampling=Sampling())
    greedy = {model.generate([5], own).token_ids for _ in range(3)}
    assert len(greedy) == 1, "what a caller says goes first"


def run(*words: str) -> Any:
    return CliRunner().invoke(app, ["run", *words], catch_exceptions=False)


def test_options_go_before_the_checkpoint_and_the_rest_stays(folder: Path) -> None:
    def text(*options: str) -> tuple[str, str]:
        done = run(str(folder), "a", "--max-tokens", "20", "--json", *options)
        return json.loads(done.stdout)["choices"][0]["text"], done.stderr

    seeded, notice = text("--seed", "3")
    assert "note: sampling with temperature 30.0, seed 3; --temperature 0" in notice
    assert text("--seed", "3", "--temperature", "30")[0] == seeded
    greedy, notice = text("--temperature", "0")
    assert greedy != seeded
    assert "sampling" not in notice


def test_options_without_effect_are_said(checkpoint: Callable[..., Path]) -> None:
    done = run(str(checkpoint("dense")), "a", "--max-tokens", "2", "--top-k", "5", "--seed", "3")
    assert "--top-k, --seed changes nothing at temperature 0" in done.stderr


def test_a_wrong_option_is_refused_before_anything_is_loaded() -> None:
    done = run("./no-such-folder", "a", "--top-p", "1.5")
    assert done.exit_code == 1
    assert "top_p is 1.5" in done.stderr
