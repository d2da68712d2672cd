"""What a generation gives."""

from dataclasses import asdict, dataclass
from typing import Any

from fuel_core.decode import Counters
from fuel_core.generate.sequence import FinishReason, TokenLogprob


@dataclass(frozen=True, kw_only=True)
class Timings:
    """Where the time of a run went until a prompt was done; prompts may have run together.

    Attributes:
        load_ms: reading the model, before this run.
        first_token_ms: from the start of the run to its first token.
        decode_ms: from then on to the last token of this prompt.
        total_ms: from the start of the run to the last token of this prompt.
        prefill_ms, plan_ms, rebind_ms, replay_ms, sample_ms: parts of it, by phase.
        tokens_per_s: tokens of all prompts after the first one, by ``decode_ms``; None below two.
    """

    load_ms: float
    first_token_ms: float
    decode_ms: float
    total_ms: float
    prefill_ms: float
    plan_ms: float
    rebind_ms: float
    replay_ms: float
    sample_ms: float
    tokens_per_s: float | None


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One continuation.

    Attributes:
        text: without special tokens, the stop token and the stop string; empty where the checkpoint has no
            tokenizer.
        token_ids: all that was generated, a stop token included.
        finish_reason: ``"stop"`` at a stop token or string, ``"length"`` at the limit.
        logprobs: one a token, where they were asked for.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Completion:
    """The result of one prompt. ``text`` and its like are those of the first choice.

    Attributes:
        choices: ``n`` continuations.
        prompt_token_ids: what they continue.
        timings: of the run.
        counters: of its session, since the session was made.
    """

    choices: tuple[Choice, ...]
    prompt_token_ids: tuple[int, ...]
    timings: Timings
    counters: Counters

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.choices[0].token_ids

    @property
    def finish_reason(self) -> FinishReason:
        return self.choices[0].finish_reason

    def as_dict(self) -> dict[str, Any]:
        """The content as plain JSON values: the first choice's at the top, all of them below."""
        plain = asdict(self)
        return {**plain["choices"][0], **plain}
