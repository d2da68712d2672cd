"""Reading a checkpoint's tokenizer files, and encoding with them."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

from fuel_core.errors import RequestError, TokenizerError
from fuel_core.text.tokenizer import Tokenizer

WORDS = {"<s>": 0, "</s>": 1, "<pad>": 2, "<|turn|>": 3}


def library() -> tokenizers.Tokenizer:
    """A byte-level tokenizer without merges, which puts ``<s>`` before each text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = WORDS | {character: len(WORDS) + place for place, character in enumerate(alphabet)}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return tokenizer


def write(folder: Path, config: Any = None, backend: tokenizers.Tokenizer | None = None) -> Path:
    (backend or library()).save(str(folder / "tokenizer.json"))
    if config is not None:
        text = config if isinstance(config, str) else json.dumps(config)
        (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize("text", ["In the beginning", "", "naïve 世界 👋🏽\n", "a " * 3000])
def test_text_survives_the_round_trip(text: str, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(write(tmp_path))
    ids = tokenizer.encode(text)
    assert ids == library().encode(text).ids
    assert all(type(token_id) is int for token_id in ids)
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<s>" + text
    assert tokenizer.decode(iter(ids)) == text


def test_special_tokens_are_added_unless_declined(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(write(tmp_path))
    assert tokenizer.encode("a") == [0, *tokenizer.encode("a", add_special_tokens=False)]
    assert len(tokenizer.encode("a", add_special_tokens=False)) == 1


def test_vocab_size_counts_added_tokens(tmp_path: Path) -> None:
    backend = library()
    backend.add_tokens(["added"])
    tokenizer = Tokenizer.from_folder(write(tmp_path, backend=backend))
    assert tokenizer.vocab_size == len(WORDS) + 256 + 1


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (None, set()),
        ({}, set()),
        ({"eos_token": None}, set()),
        ({"eos_token": "</s>"}, {1}),
        ({"eos_token": {"content": "<|turn|>", "lstrip": False, "__type": "AddedToken"}}, {3}),
    ],
)
def test_eos_is_read_from_the_tokenizer_config(config: Any, expected: set[int], tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(write(tmp_path, config))
    assert tokenizer.eos_token_ids == expected
    assert isinstance(tokenizer.eos_token_ids, frozenset)


@pytest.mark.parametrize(
    "config",
    [
        {"eos_token": "<|turn|>"},
        {"pad_token": {"content": "<|turn|>"}},
        {"additional_special_tokens": ["<|turn|>"]},
        {"extra_special_tokens": {"turn_token": "<|turn|>"}},
        {"added_tokens_decoder": {"3": {"content": "<|turn|>", "special": True}}},
    ],
)
def test_tokens_named_special_in_the_config_are_special(config: Any, tmp_path: Path) -> None:
    """Their text must reach the model as one token, and the answer must not show it."""
    tokenizer = Tokenizer.from_folder(write(tmp_path, config))
    assert tokenizer.encode("<|turn|>", add_special_tokens=False) == [3]
    assert tokenizer.decode([3]) == ""
    assert tokenizer.decode([3], skip_special_tokens=False) == "<|turn|>"
    assert tokenizer.vocab_size == len(WORDS) + 256


def test_other_tokens_are_plain_text(tmp_path: Path) -> None:
    config = {
        "eos_token": "</s>",
        "pad_token": "[absent]",
        "added_tokens_decoder": {"3": {"content": "<|turn|>", "special": False}},
    }
    tokenizer = Tokenizer.from_folder(write(tmp_path, config))
    assert len(tokenizer.encode("<|turn|>", add_special_tokens=False)) == len("<|turn|>")
    assert tokenizer.decode([3]) == "<|turn|>"
    assert tokenizer.vocab_size == len(WORDS) + 256


def test_stored_flags_of_special_tokens_are_kept(tmp_path: Path) -> None:
    """Registering a known token anew would drop its ``lstrip``, and with it the text's spaces would move."""
    backend = library()
    backend.add_special_tokens([tokenizers.AddedToken("</s>", lstrip=True, special=True, normalized=False)])
    tokenizer = Tokenizer.from_folder(write(tmp_path, {"eos_token": "</s>"}, backend))
    assert tokenizer.encode("a </s>") == tokenizer.encode("a</s>") == [0, *backend.encode("a").ids[1:], 1]


def test_a_prompt_is_never_cut_or_padded(tmp_path: Path) -> None:
    """Published tokenizer.json files carry the truncation and padding of their training."""
    backend = library()
    backend.enable_truncation(8)
    backend.enable_padding(length=16, pad_id=2, pad_token="<pad>")
    tokenizer = Tokenizer.from_folder(write(tmp_path, backend=backend))
    assert len(tokenizer.encode("abcdefghijklmnopqrst")) == 21
    assert len(tokenizer.encode("ab")) == 3


def test_a_lone_surrogate_is_a_request_error(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(write(tmp_path))
    with pytest.raises(RequestError, match=r"not UTF-8: the lone surrogate U\+D83D at character 6"):
        tokenizer.encode("half \ud83d of a pair")


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ([], r"has no tokenizer\.json; probably an incomplete download"),
        (["vocab.json", "merges.txt"], r"it has vocab\.json, merges\.txt, which fuel does not read yet"),
    ],
)
def test_a_missing_tokenizer_says_what_to_do(files: list[str], complaint: str, tmp_path: Path) -> None:
    for name in files:
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(TokenizerError, match=complaint):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"{}",
        b'{"model": {"type": "Unheard"}}',
        b"\xff\xfe",
        b"version https://git-lfs.github.com/",
    ],
)
def test_a_broken_tokenizer_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(TokenizerError, match=r"tokenizer\.json cannot be read"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ("{", "no valid JSON"),
        ("[]", "an object is expected"),
        ({"eos_token": 3}, r"eos_token of .*tokenizer_config\.json is 3; expected a string"),
        ({"eos_token": ["</s>"]}, "eos_token of"),
        ({"eos_token": {"id": 1}}, "eos_token of"),
        ({"eos_token": "<absent>"}, r"'<absent>', which the vocabulary of .*tokenizer\.json lacks"),
        ({"pad_token": 2}, "pad_token of"),
        ({"additional_special_tokens": [3]}, "additional_special_tokens of"),
        ({"additional_special_tokens": "<s>"}, "additional_special_tokens of"),
        ({"added_tokens_decoder": "<s>"}, "added_tokens_decoder of"),
        ({"added_tokens_decoder": {"0": {"special": True}}}, "added_tokens_decoder of"),
    ],
)
def test_a_broken_tokenizer_config_is_named(config: Any, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=complaint):
        Tokenizer.from_folder(write(tmp_path, config))
