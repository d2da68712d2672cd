"""Streamed text equals decoded text, at any cut, for byte-level and byte-fallback tokenizers.

The references are the tokenizers library and, for malformed runs of byte tokens (which the library
decodes otherwise, see fuel_core.text.detokenizer), a direct transcription of the rule.
"""

import random
import re
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from fuel_core.errors import RequestError, TokenizerError
from fuel_core.text.detokenizer import Detokenizer
from fuel_core.text.spelling import Spelling, read_spelling
from fuel_core.text.tokenizer import Tokenizer

TEXTS = [
    "Hello world, this is a  test.\n\n\tIndented code: x = [1, 2];",
    "naïve café, Ελληνικά, русский язык, עברית",
    "日本語のテキスト。中文字符測試，한국어 텍스트",
    "👋 wave, family 👨‍👩‍👧‍👦, flag 🇯🇵, skin 👍🏽",
    " leading, trailing ",
    "zero\u200bwidth \u0301combining \U0010ffff ▁ meta",
]
CORPUS = [*TEXTS, "the quick brown fox jumps over the lazy dog " * 5]
LLAMA = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]


def byte_level() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.add_tokens(["日本", " plain added", "né"])
    return tokenizer


def byte_fallback(*stages: decoders.Decoder) -> tokenizers.Tokenizer:
    """As converted from sentencepiece: ``▁`` for a space, ``<0xNN>`` for what has no piece."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += [
        "▁",
        "▁▁",
        "e",
        "l",
        "o",
        "H",
        "▁H",
        "▁He",
        "ll",
        "llo",
        "▁Hello",
        "w",
        "▁w",
        "▁world",
        "中",
        "の",
    ]
    pieces += [chr(letter) for letter in range(0x20, 0x7F) if chr(letter) not in " eloHw"]
    model = models.BPE(
        vocab={piece: place for place, piece in enumerate(pieces)},
        merges=[("▁", "▁"), ("▁", "H"), ("l", "l"), ("▁H", "e"), ("ll", "o"), ("▁He", "llo"), ("▁", "w")],
        unk_token="<unk>",
        byte_fallback=True,
        fuse_unk=True,
    )
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.Prepend("▁"), tokenizers.normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = stages[0] if len(stages) == 1 else decoders.Sequence(list(stages))
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


KINDS: dict[str, Callable[[], tokenizers.Tokenizer]] = {
    "byte-level": byte_level,
    "llama": lambda: byte_fallback(*LLAMA),
    "gemma": lambda: byte_fallback(*LLAMA[:3]),
    "strip-two": lambda: byte_fallback(*LLAMA[:3], decoders.Strip(" ", 2, 0)),
    "fallback-then-metaspace": lambda: byte_fallback(decoders.ByteFallback(), decoders.Metaspace()),
    "metaspace-then-fallback": lambda: byte_fallback(
        decoders.Metaspace(prepend_scheme="first"), decoders.ByteFallback()
    ),
    "metaspace": lambda: byte_fallback(decoders.Metaspace()),
    "metaspace-never": lambda: byte_fallback(decoders.Metaspace(prepend_scheme="never")),
}


@pytest.fixture(params=KINDS)
def library(request: pytest.FixtureRequest) -> tokenizers.Tokenizer:
    return KINDS[request.param]()


def random_sequences(library: tokenizers.Tokenizer, number: int = 500) -> list[list[int]]:
    """Encoded text cut anywhere, interspersed with stray bytes, special tokens and ids without a token."""
    rng = random.Random(0)
    size = library.get_vocab_size()
    stray = [library.token_to_id(token) for token in ("<0xFF>", "<0xE4>", "<0xB8>", "<0xF0>", "ÿ", "ä", "ð")]
    stray = [token_id for token_id in stray if token_id is not None]
    sequences = []
    for place in range(number):
        ids: list[int] = []
        for _ in range(rng.randint(0, 6)):
            encoded = library.encode(rng.choice(TEXTS)).ids
            begin = rng.randrange(len(encoded))
            ids += encoded[begin : begin + rng.randint(1, 25)]
            if place % 2:
                ids += rng.choices(stray, k=rng.randint(0, 2))
                ids += rng.choices(range(size + 5), k=rng.randint(0, 5))
        if place % 5 == 0:
            ids = rng.choices(range(size + 5), k=rng.randint(1, 30))
        sequences.append(ids)
    return sequences


def tokens_of(library: tokenizers.Tokenizer, ids: list[int], skip_special_tokens: bool) -> list[str]:
    special = {"<unk>", "<s>", "</s>", "<|end|>"} if skip_special_tokens else set()
    tokens = [library.id_to_token(token_id) for token_id in ids]
    return [token for token in tokens if token is not None and token not in special]


def byte_value(token: str) -> int | None:
    match = re.fullmatch(r"<0x(..)>", token)
    return int(match[1], 16) if match else None


def byte_runs(tokens: list[str]) -> list[bytes]:
    runs = groupby(map(byte_value, tokens), lambda value: value is not None)
    return [bytes(value for value in run if value is not None) for is_run, run in runs if is_run]


def is_utf8(run: bytes) -> bool:
    try:
        run.decode()
    except UnicodeDecodeError:
        return False
    return True


def stream(tokenizer: Tokenizer, ids: list[int], skip_special_tokens: bool = True) -> str:
    detokenizer = tokenizer.detokenizer(skip_special_tokens)
    return "".join([detokenizer.push(token_id) for token_id in ids]) + detokenizer.flush()


@pytest.mark.parametrize("skip_special_tokens", [True, False])
def test_stream_and_decode_equal_the_library(
    library: tokenizers.Tokenizer, skip_special_tokens: bool
) -> None:
    """On every sequence of a byte-level tokenizer; of others, on those whose byte tokens form UTF-8."""
    tokenizer = Tokenizer(library)
    fallback = "ByteFallback" in str(library.decoder)
    compared = replaced = 0
    for ids in random_sequences(library):
        text = stream(tokenizer, ids, skip_special_tokens)
        assert text == tokenizer.decode(ids, skip_special_tokens)
        if not fallback or all(map(is_utf8, byte_runs(tokens_of(library, ids, skip_special_tokens)))):
            assert text == library.decode(ids, skip_special_tokens=skip_special_tokens)
            compared += 1
            replaced += "\ufffd" in text
    assert compared == 500 if not fallback else compared > 100
    assert replaced > 200 or "ByteLevel" not in str(library.decoder)


@pytest.mark.parametrize("kind", ["llama", "gemma", "strip-two"])
def test_malformed_byte_tokens_become_text_by_unicodes_practice(kind: str) -> None:
    library = KINDS[kind]()
    tokenizer = Tokenizer(library)
    to_strip = {"llama": 1, "gemma": 0, "strip-two": 2}[kind]
    malformed = 0
    for ids in random_sequences(library):
        tokens = tokens_of(library, ids, skip_special_tokens=True)
        malformed += not all(map(is_utf8, byte_runs(tokens)))
        spelt = b""
        for token in tokens:
            value = byte_value(token)
            spelt += token.replace("▁", " ").encode() if value is None else bytes([value])
        text = spelt.decode("utf-8", errors="replace")
        for _ in range(to_strip):
            text = text.removeprefix(" ")
        assert stream(tokenizer, ids) == tokenizer.decode(ids) == text
    assert malformed > 100


def test_text_is_sent_as_soon_as_it_is_complete_and_never_unsaid(library: tokenizers.Tokenizer) -> None:
    """Streams have shown U+FFFD for half of an emoji, sent characters twice, or lagged a token behind."""
    tokenizer = Tokenizer(library)
    split_characters = 0
    for text in TEXTS:
        ids = library.encode(text).ids
        whole = tokenizer.decode(ids)
        detokenizer = tokenizer.detokenizer()
        sent = ""
        for count, token_id in enumerate(ids, start=1):
            sent += detokenizer.push(token_id)
            if "ByteFallback" in str(library.decoder) or "ByteLevel" in str(library.decoder):
                assert "\ufffd" not in sent
            complete = tokenizer.decode(ids[:count])
            split_characters += complete.endswith("\ufffd")
            assert sent == complete.removesuffix("\ufffd")
        assert sent == whole
        assert detokenizer.flush() == ""
    assert split_characters > 20 or "Byte" not in str(library.decoder)


def ids_of(library: tokenizers.Tokenizer, *tokens: str) -> list[int]:
    ids = [library.token_to_id(token) for token in tokens]
    assert None not in ids
    return ids


def pieces(library: tokenizers.Tokenizer, *tokens: str) -> list[str]:
    """Return the text of each push, and of the flush."""
    detokenizer = Tokenizer(library).detokenizer()
    return [detokenizer.push(token_id) for token_id in ids_of(library, *tokens)] + [detokenizer.flush()]


def test_scripted_byte_level() -> None:
    library = byte_level()
    assert pieces(library, "ð", "Ł", "ĳ", "ĭ", "!") == ["", "", "", "👋", "!", ""]
    # half a character, then text: the half is given up as one U+FFFD and the text goes on
    assert pieces(library, "A", "ä", "¸", "B") == ["A", "", "", "\ufffdB", ""]
    assert pieces(library, "ÿ", "A") == ["\ufffd", "A", ""]
    assert pieces(library, "A", "ð", "Ł") == ["A", "", "", "\ufffd"]
    assert pieces(library, "A", "<|end|>", "Ġ", "B") == ["A", "", " ", "B", ""]
    # a special token does not cut the character around it
    assert pieces(library, "ä", "<|end|>", "¸", "Ń") == ["", "", "", "中", ""]


def test_scripted_byte_fallback() -> None:
    library = byte_fallback(*LLAMA)
    assert pieces(library, "<0xE4>", "<0xB8>", "<0x96>") == ["", "", "世", ""]
    # the library would turn the finished character before a wrong byte into three U+FFFD
    assert pieces(library, "<0xE4>", "<0xB8>", "<0x96>", "<0xFF>") == ["", "", "世", "\ufffd", ""]
    assert pieces(library, "▁H", "<0xFF>", "▁world") == ["H", "\ufffd", " world", ""]
    assert pieces(library, "<0xF0>", "<0x9F>") == ["", "", "\ufffd"]
    assert pieces(library, "<s>", "▁Hello", "▁world", "</s>") == ["", "Hello", " world", "", ""]
    assert pieces(library, "▁", "▁Hello") == ["", " Hello", ""]
    assert pieces(library, "▁▁", "H") == [" ", "H", ""]
    assert pieces(library, "<0x20>", "▁H") == ["", " H", ""]
    assert pieces(library, "H", "▁", "▁H") == ["H", " ", " H", ""]


def test_each_push_looks_up_one_token_however_long_the_text_is() -> None:
    """Decoding the whole text again for each token made long answers quadratic."""
    looked_up: list[int] = []

    def token_of(token_id: int) -> str:
        looked_up.append(token_id)
        return f"<0x{token_id:02X}>"

    detokenizer = Detokenizer(spelling=Spelling(byte_fallback=True), token_of=token_of)
    ids = list("ab世👋".encode()) * 1000
    assert "".join([detokenizer.push(token_id) for token_id in ids]) == "ab世👋" * 1000
    assert looked_up == ids


@pytest.mark.parametrize("token_id", [-1, 2**32])
def test_ids_that_no_vocabulary_can_have_are_refused(token_id: int) -> None:
    detokenizer = Tokenizer(byte_level()).detokenizer()
    with pytest.raises(RequestError, match=f"{token_id} is no token id"):
        detokenizer.push(token_id)


def test_a_tokenizer_without_decoder_separates_by_spaces() -> None:
    library = tokenizers.Tokenizer(models.WordLevel({"in": 0, "the": 1, "": 2}, unk_token="in"))
    for ids in ([0, 1, 0], [2, 0, 2, 1], [], [9, 1, 0]):
        assert stream(Tokenizer(library), ids) == Tokenizer(library).decode(ids) == library.decode(ids)


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.WordPiece(),
        decoders.BPEDecoder(),
        decoders.CTC(),
        decoders.Strip(" ", 1, 0),
        decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 1, 1)]),
        decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 1, 0), decoders.Strip("x", 1, 0)]),
        decoders.Sequence([decoders.Fuse(), decoders.Replace("▁", " ")]),
        decoders.Sequence([decoders.Fuse(), decoders.Metaspace()]),
        decoders.Sequence([decoders.Fuse(), decoders.ByteFallback()]),
        decoders.Sequence([decoders.ByteFallback(), decoders.ByteLevel()]),
        decoders.Replace(tokenizers.Regex("▁+"), " "),
    ],
)
def test_a_decoder_that_cannot_be_streamed_exactly_is_refused(decoder: decoders.Decoder) -> None:
    library = tokenizers.Tokenizer(models.BPE())
    library.decoder = decoder
    with pytest.raises(TokenizerError, match=r"decoder .*stage \{'type': '\w+'"):
        Tokenizer(library)


def test_nested_sequences_are_read() -> None:
    decoder = {"type": "Sequence", "decoders": [{"type": "Sequence", "decoders": [{"type": "ByteLevel"}]}]}
    assert read_spelling(decoder) == Spelling(byte_level=True)


def test_the_stream_of_a_loaded_folder(tmp_path: Path) -> None:
    byte_fallback(*LLAMA).save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.from_folder(tmp_path)
    for text in TEXTS:
        assert stream(tokenizer, tokenizer.encode(text)) == text.replace("▁", " ")
