"""A checkpoint's tokenizer, through the tokenizers library."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import tokenizers

from fuel_core.errors import TokenizerError
from fuel_core.text.detokenizer import Detokenizer
from fuel_core.text.sentencepiece_model import SENTENCEPIECE_FILE, read_sentencepiece
from fuel_core.text.spelling import read_spelling
from fuel_core.text.tokenizer_json import read_if_present
from fuel_core.text.utf8 import require_utf8

TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
SPECIAL_TOKENS_FILE = "special_tokens_map.json"
_SLOW_FILES = ("vocab.json", "merges.txt", "vocab.txt")
_SPECIAL_KEYS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_SPECIAL_LISTS = ("additional_special_tokens", "extra_special_tokens")


class Tokenizer:
    """Text to token ids and back.

    Use :meth:`from_folder`. Truncation and padding stored in tokenizer.json are switched off: a
    prompt is never cut. Spaces before punctuation are never cleaned up, whatever
    ``clean_up_tokenization_spaces`` says: decoding is the inverse of encoding.

    Attributes:
        eos_token_ids: the end-of-sequence ids that the tokenizer's own files name.
    """

    def __init__(self, backend: tokenizers.Tokenizer, *, eos_token_ids: frozenset[int] = frozenset()) -> None:
        backend.no_truncation()
        backend.no_padding()
        self.eos_token_ids = eos_token_ids
        self._backend = backend
        decoder = backend.decoder
        self._spelling = read_spelling(None if decoder is None else json.loads(decoder.__getstate__()))
        self._special_ids = frozenset(
            token_id for token_id, token in backend.get_added_tokens_decoder().items() if token.special
        )

    @classmethod
    def from_folder(cls, folder: Path | str) -> Self:
        """Read tokenizer.json, or a sentencepiece tokenizer.model, and the configs beside it.

        Tokens that tokenizer_config.json or special_tokens_map.json name as special are treated so,
        where the vocabulary has them; the former wins where both name one.

        Raises:
            TokenizerError: a file is missing or unreadable, or they contradict each other.
        """
        folder = Path(folder)
        config_path = folder / TOKENIZER_CONFIG_FILE
        config = read_if_present(folder / SPECIAL_TOKENS_FILE) | read_if_present(config_path)
        path, backend = _backend(folder, config)
        eos_token_ids: frozenset[int] = frozenset()
        eos_token = _content(config.get("eos_token"), f"eos_token of {config_path}")
        if eos_token is not None:
            eos_token_id = backend.token_to_id(eos_token)
            if eos_token_id is None:
                raise TokenizerError(
                    f"{config_path} names eos_token {eos_token!r}, which the vocabulary of {path} lacks; "
                    "the two files belong to different tokenizers"
                )
            eos_token_ids = frozenset({eos_token_id})
        known = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
        backend.add_special_tokens(
            [
                tokenizers.AddedToken(token, special=True, normalized=False)
                for token in dict.fromkeys(_special_tokens(config, config_path))
                if token not in known and backend.token_to_id(token) is not None
            ]
        )
        return cls(backend, eos_token_ids=eos_token_ids)

    @classmethod
    def without_vocabulary(cls) -> Self:
        """A tokenizer of no token: every id is without text."""
        return cls(tokenizers.Tokenizer(tokenizers.models.BPE()))

    @property
    def special_token_ids(self) -> frozenset[int]:
        """Tokens that are no text, such as those around one."""
        return self._special_ids

    @property
    def vocab_size(self) -> int:
        """Number of tokens, added ones included; a model's logits may be padded beyond it."""
        return self._backend.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of ``text``, with the special tokens that tokenizer.json puts around it.

        Raises:
            RequestError: the text holds a lone surrogate, which no UTF-8 can express.
        """
        text = require_utf8(text, "the text")
        return self._backend.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Return the text of ``ids``; malformed bytes become U+FFFD."""
        stream = self.detokenizer(skip_special_tokens)
        return "".join([stream.push(token_id) for token_id in ids]) + stream.flush()

    def detokenizer(self, skip_special_tokens: bool = True) -> Detokenizer:
        """Return a fresh stream that gives the text of :meth:`decode` piece by piece."""
        return Detokenizer(
            spelling=self._spelling,
            token_of=self._backend.id_to_token,
            skipped=self._special_ids if skip_special_tokens else frozenset(),
        )


def has_tokenizer_files(folder: Path) -> bool:
    """Whether a folder holds any file of a tokenizer, readable or not."""
    known = (TOKENIZER_FILE, TOKENIZER_CONFIG_FILE, SPECIAL_TOKENS_FILE, SENTENCEPIECE_FILE, *_SLOW_FILES)
    return any((folder / name).exists() for name in known)


def _content(token: Any, source: str) -> str | None:
    """Return the text of a token that is written as a string, as an AddedToken object, or null."""
    match token:
        case None | str():
            return token
        case {"content": str(content)}:
            return content
    raise TokenizerError(f"{source} is {token!r}; expected a string, an object with `content`, or null")


def _special_tokens(config: Mapping[str, Any], path: Path) -> Iterator[str]:
    """Yield the tokens that tokenizer_config.json calls special, in any of the places it has for them."""
    tokens = [(key, config.get(key)) for key in _SPECIAL_KEYS]
    for key in _SPECIAL_LISTS:
        tokens += [(key, token) for token in _members(config, key, path)]
    for token in _members(config, "added_tokens_decoder", path):
        if isinstance(token, dict) and token.get("special"):
            tokens.append(("added_tokens_decoder", token))
    for key, token in tokens:
        content = _content(token, f"{key} of {path}")
        if content is not None:
            yield content


def _members(config: Mapping[str, Any], key: str, path: Path) -> list[Any]:
    match config.get(key):
        case None:
            return []
        case list(members):
            return members
        case dict(members):  # transformers 5 writes name -> token; added_tokens_decoder is id -> token
            return list(members.values())
        case other:
            raise TokenizerError(f"{key} of {path} is {other!r}; expected a list or an object of tokens")


def _backend(folder: Path, config: Mapping[str, Any]) -> tuple[Path, tokenizers.Tokenizer]:
    """The vocabulary's file and what it holds: tokenizer.json where it exists."""
    path = folder / TOKENIZER_FILE
    if not path.is_file():
        path = folder / SENTENCEPIECE_FILE
        if not path.is_file():
            raise _no_tokenizer(folder)
        return path, read_sentencepiece(path, config)
    try:
        return path, tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for whatever is wrong with a file
        raise TokenizerError(f"{path} cannot be read: {error}; incomplete or corrupt download?") from error


def _no_tokenizer(folder: Path) -> TokenizerError:
    missing = f"{folder} has no {TOKENIZER_FILE}"
    slow = [name for name in _SLOW_FILES if (folder / name).is_file()]
    if slow:
        return TokenizerError(
            f"{missing}; it has {', '.join(slow)}, which fuel does not read yet. Convert it once with "
            f"`AutoTokenizer.from_pretrained(folder).save_pretrained(folder)` of transformers, which writes "
            f"{TOKENIZER_FILE}"
        )
    return TokenizerError(f"{missing}; probably an incomplete download: fetch the tokenizer files too")
