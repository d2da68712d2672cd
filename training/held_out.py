"""How well a model predicts documents that it has not seen."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from tokenizer import end_of_text_id
from tokenizers import Tokenizer

from fuel_core.blocks.decoder import Decoder


@dataclass(frozen=True, kw_only=True)
class Score:
    """The surprise of a model over some text.

    Attributes:
        nats: summed over all predicted tokens.
        tokens: predicted, the end of each document included.
        text_bytes: of the text in UTF-8.
    """

    nats: float
    tokens: int
    text_bytes: int

    @property
    def nats_per_token(self) -> float:
        return self.nats / self.tokens

    @property
    def perplexity(self) -> float:
        """Per token; depends on the tokenizer."""
        return math.exp(self.nats_per_token)

    @property
    def byte_perplexity(self) -> float:
        return math.exp(self.nats / self.text_bytes)

    @property
    def bits_per_byte(self) -> float:
        """Comparable between tokenizers."""
        return self.nats / math.log(2) / self.text_bytes


def measure(decoder: Decoder, documents: Sequence[str], tokenizer: Tokenizer, *, window_tokens: int) -> Score:
    """Predict every token of every document once, each from at most ``window_tokens`` before it.

    A document starts after ``<|endoftext|>`` and ends with it; a longer one is cut into windows, and
    the first token of a window sees one token of the window before it.
    """
    nats, tokens = 0.0, 0
    was_training = decoder.training
    decoder.eval()
    with torch.no_grad():
        for window in _windows(documents, tokenizer, window_tokens):
            ids = torch.tensor([window])
            logits = decoder(ids[:, :-1])
            nats += F.cross_entropy(logits[0], ids[0, 1:], reduction="sum").item()
            tokens += len(window) - 1
    decoder.train(was_training)
    return Score(nats=nats, tokens=tokens, text_bytes=sum(len(text.encode()) for text in documents))


def _windows(documents: Sequence[str], tokenizer: Tokenizer, window_tokens: int) -> Iterator[list[int]]:
    end = end_of_text_id(tokenizer)
    for encoding in tokenizer.encode_batch(list(documents)):
        ids = [end, *encoding.ids, end]
        for start in range(0, len(ids) - 1, window_tokens):
            yield ids[start : start + window_tokens + 1]
