"""Tokens to learn from: one stream of documents, and windows drawn from it at random.

Letters: N tokens of the stream, B windows, T tokens a window.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from tokenizer import end_of_text_id
from tokenizers import Tokenizer
from torch import Tensor

_NEWLINE = "\u010a"  # how byte-level BPE spells the byte of a line break


@dataclass(frozen=True, kw_only=True)
class TokenStream:
    """Documents as one row of tokens, with ``<|endoftext|>`` before, between and after them.

    Attributes:
        tokens_N: int64.
        starts: where documents and lines begin, ascending. Windows start there alone, so that the first
            position, which sees nothing before it, learns to begin a sentence as a prompt does.
    """

    tokens_N: Tensor
    starts: Tensor

    @classmethod
    def of(cls, documents: Iterable[str], tokenizer: Tokenizer) -> "TokenStream":
        end = end_of_text_id(tokenizer)
        tokens = [end]
        for encoding in tokenizer.encode_batch(list(documents)):
            tokens += [*encoding.ids, end]
        tokens_N = torch.tensor(tokens)
        breaks = [token_id for token, token_id in tokenizer.get_vocab().items() if token.endswith(_NEWLINE)]
        line_starts = torch.isin(tokens_N, torch.tensor(breaks)).roll(1)
        return cls(tokens_N=tokens_N, starts=(line_starts | (tokens_N == end)).nonzero().flatten())

    def draw(self, windows: int, window_tokens: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw windows with replacement.

        Returns:
            What the model reads and what it shall say next, each ``[B, T]``.
        """
        last_start = len(self.tokens_N) - window_tokens - 1
        usable = int(torch.searchsorted(self.starts, last_start, right=True))
        assert usable, f"no window of {window_tokens} tokens fits a text of {len(self.tokens_N)}"
        chosen = self.starts[torch.randint(usable, (windows,), generator=generator)]
        tokens = self.tokens_N[chosen[:, None] + torch.arange(window_tokens + 1)]
        return tokens[:, :-1], tokens[:, 1:]
