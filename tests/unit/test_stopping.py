"""End-of-sequence ids are a set, gathered from all files that name some."""

from pathlib import Path
from typing import Any

import pytest

from fuel_core.errors import ConfigError
from fuel_core.generate.stopping import read_generation_config, stop_token_ids

HERE = Path("some") / "checkpoint"


def test_the_three_sources_are_united() -> None:
    """A reader of config.json alone ran past the end of Llama 3's chat turns (128009)."""
    ids = stop_token_ids(
        {"eos_token_id": 128001}, {"eos_token_id": [128001, 128008, 128009]}, {7}, folder=HERE
    )
    assert ids == frozenset({7, 128001, 128008, 128009})


@pytest.mark.parametrize(
    ("config", "generation_config", "tokenizer_ids", "expected"),
    [
        ({"eos_token_id": 0}, None, (), {0}),
        ({"eos_token_id": [1, 2]}, {}, (), {1, 2}),
        ({"eos_token_id": None}, {"eos_token_id": 3}, (), {3}),
        ({"eos_token_id": 1}, {"eos_token_id": None}, (), {1}),
        ({"eos_token_id": 1}, {"eos_token_id": []}, (), {1}),
        ({}, None, frozenset({4}), {4}),
        ({"eos_token_id": None}, {"eos_token_id": None}, (), set()),
        ({}, None, (), set()),
    ],
)
def test_integers_lists_and_null(
    config: dict[str, Any], generation_config: dict[str, Any] | None, tokenizer_ids: Any, expected: set[int]
) -> None:
    assert stop_token_ids(config, generation_config, tokenizer_ids, folder=HERE) == expected


@pytest.mark.parametrize("value", ["2", 2.0, True, -1, [1, "2"], [None], [[1]], {"id": 1}])
@pytest.mark.parametrize("source", ["config.json", "generation_config.json"])
def test_other_types_are_refused_with_their_file(value: Any, source: str) -> None:
    """The file was named without its folder, as if there were one config.json on a machine."""
    good: dict[str, Any] = {"eos_token_id": 1}
    bad = {"eos_token_id": value}
    sources = (bad, good) if source == "config.json" else (good, bad)
    with pytest.raises(ConfigError) as caught:
        stop_token_ids(*sources, (), folder=HERE)
    assert str(caught.value).startswith(f"{HERE / source}: eos_token_id is {value!r}; expected")


def test_generation_config_is_optional_but_must_be_readable(tmp_path: Path) -> None:
    assert read_generation_config(tmp_path) is None
    path = tmp_path / "generation_config.json"
    path.write_text('{"eos_token_id": [1, 2]}')
    assert read_generation_config(tmp_path) == {"eos_token_id": [1, 2]}
    path.write_text('{"eos_token_id": [1, ')
    with pytest.raises(ConfigError, match=r"generation_config\.json is no valid JSON"):
        read_generation_config(tmp_path)
