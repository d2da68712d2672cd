"""How the tokens of a vocabulary spell bytes, read from a tokenizer.json's decoder.

A decoder is defined on whole sequences; the decoders of language models nevertheless give each token
its own bytes, apart from what happens at the very start of the text. Stating that makes streaming
exact and costs the same for every token, however long the text is.

Source: the decoders of the tokenizers library, 0.23.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fuel_core.errors import TokenizerError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, kw_only=True)
class Spelling:
    """The bytes of a token, and what differs at the start of a text.

    Attributes:
        byte_level: the characters of a token stand for bytes, as in GPT-2.
        byte_fallback: tokens such as ``<0xE4>`` stand for one byte.
        rewrites: ``(old, new, new in the first token)``, replaced in this order.
        separator: what stands before every token but the first.
        stripped: a character of which up to ``stripped_at_start`` are removed from the start of the text.
    """

    byte_level: bool = False
    byte_fallback: bool = False
    rewrites: tuple[tuple[str, str, str], ...] = ()
    separator: str = ""
    stripped: str = " "
    stripped_at_start: int = 0

    def token_bytes(self, token: str, *, first: bool) -> bytes:
        """Return the bytes that ``token`` adds to the text."""
        if self.byte_fallback and (byte := _BYTE_TOKEN.fullmatch(token)):
            return bytes.fromhex(byte[1])
        for old, new, new_in_first in self.rewrites:
            token = token.replace(old, new_in_first if first else new)
        if self.byte_level and all(character in _BYTE_OF for character in token):
            return bytes(_BYTE_OF[character] for character in token)
        return (token if first else self.separator + token).encode("utf-8")


def read_spelling(decoder: Mapping[str, Any] | None) -> Spelling:
    """Translate the decoder of a tokenizer.json.

    Raises:
        TokenizerError: the decoder does more than give each token its bytes.
    """
    if decoder is None:
        return Spelling(separator=" ")
    byte_level = byte_fallback = joined = False
    rewrites: list[tuple[str, str, str]] = []
    stripped, stripped_at_start = " ", 0
    for stage in _stages(decoder):
        match stage:
            case {"type": "ByteLevel"} if not (joined or byte_fallback):
                byte_level = joined = True
            case {"type": "ByteFallback"} if not joined:
                byte_fallback = True
            case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)} if not joined:
                rewrites.append((old, new, new))
            case {"type": "Metaspace", "replacement": str(old), "prepend_scheme": scheme} if not joined:
                rewrites.append((old, " ", " " if scheme == "never" else ""))
            case {"type": "Fuse"}:
                joined = True
            case {"type": "Strip", "content": str(content), "start": int(start), "stop": 0} if (
                joined and not stripped_at_start
            ):
                stripped, stripped_at_start = content, start
            case _:
                raise TokenizerError(
                    f"cannot stream text through the tokenizer's decoder {dict(decoder)}: its stage "
                    f"{dict(stage)} is not understood there. fuel reads ByteLevel, or Replace (of a string), "
                    "Metaspace and ByteFallback, each followed by Fuse and Strip (at the start) or not"
                )
    return Spelling(
        byte_level=byte_level,
        byte_fallback=byte_fallback,
        rewrites=tuple(rewrites),
        stripped=stripped,
        stripped_at_start=stripped_at_start,
    )


def _stages(decoder: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if decoder["type"] == "Sequence":
        for stage in decoder["decoders"]:
            yield from _stages(stage)
    else:
        yield decoder


def _byte_of_character() -> Mapping[str, int]:
    """GPT-2's alphabet: printable Latin-1 stands for itself, other bytes for U+0100 and up."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + place): byte for place, byte in enumerate(others)
    }


_BYTE_OF = _byte_of_character()
