"""Token ids to text, one token at a time.

Bytes become text by Unicode's practice for ill-formed UTF-8 (one U+FFFD for each maximal subpart, as
in Python's and Rust's lossy decoding), and a character is held back only while its bytes are
incomplete. Byte-level tokenizers decode so anyway. For ``<0xE4>``-like byte tokens the tokenizers
library instead turns a whole run of them into U+FFFD when one of its bytes is wrong; text that was
complete would have to be unsaid, which a stream cannot do, so fuel keeps it.
"""

import codecs
from collections.abc import Callable, Set

from fuel_core.errors import RequestError
from fuel_core.text.spelling import Spelling


class Detokenizer:
    """The text of one growing sequence of tokens.

    ``"".join(push(id) for id in ids) + flush()`` is ``Tokenizer.decode(ids)``.

    Args:
        spelling: the bytes of each token.
        token_of: the token of an id, or None where the vocabulary has none.
        skipped: ids without text (special tokens).
    """

    def __init__(
        self, *, spelling: Spelling, token_of: Callable[[int], str | None], skipped: Set[int] = frozenset()
    ) -> None:
        self._spelling = spelling
        self._token_of = token_of
        self._skipped = skipped
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._first = True
        self._to_strip = spelling.stripped_at_start

    def push(self, token_id: int) -> str:
        """Return the text that is final once ``token_id`` is known; it may be empty.

        Skipped ids, and ids beyond the vocabulary (models pad theirs), have no text.

        Raises:
            RequestError: the id is negative or no 32-bit number.
        """
        if token_id in self._skipped:
            return ""
        try:
            token = self._token_of(token_id)
        except OverflowError:
            raise RequestError(f"{token_id} is no token id; ids are counted from 0") from None
        if token is None:
            return ""
        spelt = self._spelling.token_bytes(token, first=self._first)
        self._first = False
        return self._strip_start(self._utf8.decode(spelt))

    def flush(self) -> str:
        """End the text: return what was held back, U+FFFD for a character that was never completed."""
        return self._strip_start(self._utf8.decode(b"", final=True))

    def _strip_start(self, text: str) -> str:
        while self._to_strip and text:
            if not text.startswith(self._spelling.stripped):
                self._to_strip = 0
                break
            text = text.removeprefix(self._spelling.stripped)
            self._to_strip -= 1
        return text
