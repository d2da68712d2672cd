"""One continuation in progress: from logits to a token, its text, and the decision to end."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from fuel_core.decode.token_choice import RowChoice
from fuel_core.errors import RequestError
from fuel_core.generate.penalties import changes_logits, penalise
from fuel_core.generate.sampling import Sampler
from fuel_core.generate.stop_text import StopText
from fuel_core.text.detokenizer import Detokenizer

FinishReason = Literal["stop", "length"]

LogitsProcessor = Callable[[torch.Tensor, Sequence[int], Sequence[int]], torch.Tensor]
"""(logits [V], prompt ids, generated ids) -> logits [V]; must leave its input alone."""


@dataclass(frozen=True, kw_only=True)
class Stopping:
    """When a continuation ends.

    Attributes:
        max_tokens: after this many tokens.
        min_tokens: no stop token is chosen before this many.
        token_ids: at any of these tokens, whose text is left out.
        strings: at any of these texts, which are left out with all that follows.

    Raises:
        RequestError: numbers that contradict each other, or an empty stop string.
    """

    max_tokens: int
    min_tokens: int = 0
    token_ids: frozenset[int] = frozenset()
    strings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise RequestError(f"max_tokens is {self.max_tokens}; at least 1 is expected")
        if not 0 <= self.min_tokens <= self.max_tokens:
            raise RequestError(
                f"min_tokens is {self.min_tokens}; expected 0 to max_tokens ({self.max_tokens})"
            )
        StopText(self.strings)


@dataclass(frozen=True)
class TokenLogprob:
    """A token's log-probability by the model itself, before penalties, temperature and filters.

    Attributes:
        top: the most probable tokens at this place and their log-probabilities, best first.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


class SequenceState:
    """The tokens and the text of one continuation so far.

    Args:
        prompt: the tokens that it continues.
        processors: change the logits before penalties and sampling.
        top_logprobs: how many alternatives to record for each token; None records no log-probability.

    Attributes:
        token_ids: all that was generated, a stop token included.
        logprobs: one a token, when asked for.
        finish_reason: None while it goes on.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        sampler: Sampler,
        stopping: Stopping,
        detokenizer: Detokenizer,
        *,
        processors: Sequence[LogitsProcessor] = (),
        top_logprobs: int | None = None,
    ) -> None:
        self.prompt = tuple(prompt)
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.finish_reason: FinishReason | None = None
        self._sampler, self._stopping = sampler, stopping
        self._detokenizer, self._stop_text = detokenizer, StopText(stopping.strings)
        self._processors, self._top_logprobs = processors, top_logprobs

    def accept(self, logits_V: torch.Tensor) -> str:
        """Choose the next token; return the text that is final by it, all of it at the end.

        Raises:
            RequestError: no token can be chosen, or a processor returned no logits.
        """
        return self._append(self._choose(logits_V))

    def choice(self, ahead: int = 0) -> RowChoice | None:
        """How a device may choose the next token, or one so many further on, from a step's own logits.

        None where the host must, since something changes these logits or records them, or where this
        continuation has no such token.
        """
        place = len(self.token_ids) + ahead
        holds_back = place < self._stopping.min_tokens and self._stopping.token_ids
        host_only = self._processors or self._top_logprobs is not None or holds_back
        if host_only or changes_logits(self._sampler.sampling) or place >= self._stopping.max_tokens:
            return None
        return self._sampler.choice(ahead)

    def take(self, token: int, peak: float) -> str:
        """As :meth:`accept`, where a device has chosen the token by :meth:`choice`.

        Args:
            peak: the largest logit.
        """
        return self._append(self._sampler.count(token, peak))

    def _append(self, token: int) -> str:
        self.token_ids.append(token)
        if token in self._stopping.token_ids:
            self.finish_reason = "stop"
            return self._rest()
        text = self._stop_text.push(self._detokenizer.push(token))
        if self._stop_text.stopped:
            self.finish_reason = "stop"
        elif len(self.token_ids) == self._stopping.max_tokens:
            self.finish_reason = "length"
            text += self._rest()
            if self._stop_text.stopped:
                self.finish_reason = "stop"
        return text

    def _rest(self) -> str:
        """What the detokenizer and the search for stop strings still hold."""
        return self._stop_text.push(self._detokenizer.flush()) + self._stop_text.flush()

    def _choose(self, logits_V: torch.Tensor) -> int:
        scores = logits_V
        for process in self._processors:
            scores = _processed(process, scores, self.prompt, self.token_ids)
        scores = penalise(scores, self._sampler.sampling, self.prompt, self.token_ids)
        if len(self.token_ids) < self._stopping.min_tokens and self._stopping.token_ids:
            held_back = torch.tensor(sorted(self._stopping.token_ids), device=scores.device)
            scores = scores.index_fill(0, held_back, -torch.inf)
        token = self._sampler(scores)
        if self._top_logprobs is not None:
            self.logprobs.append(_logprob(logits_V, token, self._top_logprobs))
        return token


def _processed(
    process: LogitsProcessor, logits_V: torch.Tensor, prompt: Sequence[int], generated: Sequence[int]
) -> torch.Tensor:
    scores: object = process(logits_V, prompt, generated)
    if not isinstance(scores, torch.Tensor):
        found = f"a {type(scores).__name__}"
    elif scores.shape != logits_V.shape or not scores.is_floating_point():
        found = f"a tensor of shape {list(scores.shape)} and {scores.dtype}"
    else:
        return scores
    raise RequestError(
        f"the processor {process!r} returned {found}; logits of shape {list(logits_V.shape)} and "
        f"{logits_V.dtype} are expected, so that it must return what it makes of its first argument"
    )


def _logprob(logits_V: torch.Tensor, token: int, count: int) -> TokenLogprob:
    logprobs_V = torch.log_softmax(logits_V, dim=-1)
    values, ids = logprobs_V.topk(min(count, len(logprobs_V)))
    return TokenLogprob(
        token, float(logprobs_V[token]), tuple(zip(ids.tolist(), values.tolist(), strict=True))
    )
