"""A JSON object, without the leniencies of Python's parser."""

from pathlib import Path

import pytest

from fuel_core.config import read_json_object
from fuel_core.errors import ConfigError


def read(tmp_path: Path, content: str | bytes) -> dict[str, object]:
    path = tmp_path / "config.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_json_object(path)


def test_values_arrive_as_written(tmp_path: Path) -> None:
    text = '{"a": 1, "b": 1.0, "c": true, "d": null, "e": [1, {"f": "é"}], "g": 1e-06, "h": 10000000000}'
    assert read(tmp_path, text) == {
        "a": 1,
        "b": 1.0,
        "c": True,
        "d": None,
        "e": [1, {"f": "é"}],
        "g": 1e-6,
        "h": 10**10,
    }
    assert isinstance(read(tmp_path, '{"a": 1.0}')["a"], float)


def test_a_byte_order_mark_is_no_content(tmp_path: Path) -> None:
    """Editors on Windows write one; the first key then began with an invisible character."""
    assert read(tmp_path, b"\xef\xbb\xbf" + b'{"a": 1}') == {"a": 1}


@pytest.mark.parametrize(
    ("text", "repeated"),
    [('{"a": 1, "b": 2, "a": 3}', "a"), ('{"x": {"theta": 1, "theta": 2}}', "theta")],
    ids=["at the top", "nested"],
)
def test_a_key_stated_twice_is_refused(tmp_path: Path, text: str, repeated: str) -> None:
    """Python keeps the last and says nothing, other readers the first: two models from one file."""
    with pytest.raises(ConfigError, match=rf"config.json states {repeated} more than once"):
        read(tmp_path, text)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
def test_a_number_that_is_none_is_refused(tmp_path: Path, number: str) -> None:
    """Python reads 1e999 as infinity, as it does Infinity, which JSON does not have."""
    with pytest.raises(ConfigError, match=rf"config.json holds {number}"):
        read(tmp_path, f'{{"rms_norm_eps": {number}}}')


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "no valid JSON"),
        ("{not json", "no valid JSON"),
        ('{"a": 1,}', "no valid JSON"),
        ('{"a": 1} {"b": 2}', "no valid JSON"),
        ('{"a": ' + "9" * 5000 + "}", "no valid JSON"),
        ("[1, 2]", "JSON list; an object is expected"),
        ('"text"', "JSON str; an object"),
        ("null", "JSON NoneType; an object"),
        ('{"a": ' + "[" * 200_000 + "]" * 200_000 + "}", "nests too deeply"),
        (b'{"a": "\xff"}', "cannot be read"),
        ('{"a": 1}'.encode("utf-16"), "cannot be read"),
    ],
    ids=[
        "empty",
        "no json",
        "trailing comma",
        "two objects",
        "too many digits",
        "list",
        "text",
        "null",
        "deep",
        "invalid utf-8",
        "utf-16",
    ],
)
def test_what_is_no_object_is_refused_with_the_path(tmp_path: Path, content: str | bytes, why: str) -> None:
    """None of them may surface as Python's own error: RecursionError and ValueError did."""
    with pytest.raises(ConfigError, match=why) as caught:
        read(tmp_path, content)
    assert str(tmp_path / "config.json") in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere.json does not exist"):
        read_json_object(tmp_path / "nowhere.json")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_json_object(tmp_path)
