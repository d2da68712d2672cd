"""Which of a checkpoint's files states its chat templates and special tokens."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import models
from transformers import PreTrainedTokenizerFast

from fuel_core.errors import TokenizerError
from fuel_core.text.template_files import read_special_tokens, read_templates

CONFIG = "tokenizer_config.json"
NAMED = [{"name": "default", "template": "listed"}, {"name": "rag", "template": "listed rag"}]


def write(folder: Path, files: dict[str, Any]) -> Path:
    backend = tokenizers.Tokenizer(models.BPE(vocab={"<s>": 0, "</s>": 1, "<x>": 2, "a": 3}, merges=[]))
    backend.save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    "files",
    [
        {},
        {CONFIG: {}},
        {CONFIG: {"chat_template": None}},
        {CONFIG: {"chat_template": "one"}},
        {CONFIG: {"chat_template": NAMED}},
        {CONFIG: {"chat_template": {"default": "of an object", "rag": "r"}}},
        {"chat_template.jinja": "file"},
        {"chat_template.jinja": "file\n\n", CONFIG: {"chat_template": "one"}},
        {"chat_template.jinja": "file", CONFIG: {"chat_template": NAMED}},
        {"chat_template.jinja": "file", "additional_chat_templates/rag.v2.jinja": "r"},
        {"additional_chat_templates/rag.jinja": "r", CONFIG: {"chat_template": "one"}},
        {"additional_chat_templates/default.jinja": "d", "chat_template.jinja": "file"},
        {
            "additional_chat_templates/notes.txt": "n",
            "chat_templates/rag.jinja": "r",
            CONFIG: {"chat_template": "one"},
        },
    ],
)
def test_the_file_that_wins_is_the_one_that_wins_in_transformers(
    files: dict[str, Any], tmp_path: Path
) -> None:
    write(tmp_path, files)
    expected = PreTrainedTokenizerFast.from_pretrained(str(tmp_path)).chat_template
    if not isinstance(expected, dict):
        expected = {} if expected is None else {"default": expected}
    assert read_templates(tmp_path) == expected


def test_a_byte_order_mark_is_not_part_of_the_prompt(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"\xef\xbb\xbfx\r\ny")
    assert read_templates(tmp_path) == {"default": "x\ny"}


@pytest.mark.parametrize(
    "files",
    [
        {},
        {CONFIG: {"bos_token": "<s>", "eos_token": None, "add_bos_token": True, "padding_side": "left"}},
        {CONFIG: {"bos_token": {"content": "<s>", "__type": "AddedToken"}, "image_token": "<x>"}},
        {CONFIG: {"bos_token": "<s>", "extra_special_tokens": {"audio": "<x>", "image_token": "</s>"}}},
        {CONFIG: {"bos_token": "<s>", "additional_special_tokens": ["<x>"]}},
        {CONFIG: {"bos_token": "<s>"}, "special_tokens_map.json": {"bos_token": "<x>", "eos_token": "</s>"}},
        {"special_tokens_map.json": {"eos_token": {"content": "</s>", "lstrip": False}}},
        {
            CONFIG: {"bos_token": "<s>", "added_tokens_decoder": {"0": {"content": "<s>", "special": True}}},
            "special_tokens_map.json": {"bos_token": "<x>"},
        },
    ],
)
def test_special_tokens_are_those_of_transformers(files: dict[str, Any], tmp_path: Path) -> None:
    write(tmp_path, files)
    assert (
        read_special_tokens(tmp_path)
        == PreTrainedTokenizerFast.from_pretrained(str(tmp_path)).special_tokens_map
    )


@pytest.mark.parametrize(
    ("stated", "complaint"),
    [
        (3, r"chat_template of .*tokenizer_config\.json is 3; a template, or a list of named ones"),
        ({"default": 3}, r"is \{'default': 3\}"),
        (["x"], "has the entry 'x'; an object with strings as `name` and `template`"),
        ([{"name": "default"}], r"has the entry \{'name': 'default'\}"),
        ([*NAMED, {"name": "rag", "template": ""}], "has 'rag' twice"),
    ],
)
def test_a_chat_template_of_no_known_form_is_named(stated: Any, complaint: str, tmp_path: Path) -> None:
    write(tmp_path, {CONFIG: {"chat_template": stated}})
    with pytest.raises(TokenizerError, match=complaint):
        read_templates(tmp_path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("chat_template.jinja", b"\xff\xfe"),
        ("additional_chat_templates/rag.jinja", b"\xff"),
        (CONFIG, b"{"),
        ("special_tokens_map.json", b"[]"),
    ],
)
def test_an_unreadable_file_is_named(name: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    with pytest.raises(TokenizerError, match=path.name.replace(".", r"\.")):
        _ = read_templates(tmp_path), read_special_tokens(tmp_path)
