"""What a caller asks of a generation."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from fuel_core.errors import RequestError
from fuel_core.generate.sampling import Sampling
from fuel_core.generate.sequence import LogitsProcessor

DEFAULT_MAX_TOKENS = 128


@dataclass(frozen=True, kw_only=True)
class GenerationSettings:
    """How prompts are continued.

    Attributes:
        max_tokens: at most this many tokens; None for 128 or what the context leaves.
        min_tokens: no stop token is chosen before this many.
        sampling: how tokens are chosen; None for what the checkpoint's generation_config.json says, which
            is the most probable one where it says nothing.
        stop: texts that end a continuation and are left out of it.
        stop_token_ids: tokens that end a continuation, beside the model's own.
        ignore_eos: go on at the model's own end tokens; ``stop_token_ids`` still end it.
        n: continuations of each prompt, each with a random stream of its own.
        logprobs: record each token's log-probability and those of this many best alternatives.
        processors: called in turn before sampling with the logits, the prompt and what was generated.

    Raises:
        RequestError: a value is out of its range.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    sampling: Sampling | None = None
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    n: int = 1
    logprobs: int | None = None
    processors: Sequence[LogitsProcessor] = ()

    def __post_init__(self) -> None:
        if not _is_list(self.stop) or not all(isinstance(text, str) for text in self.stop):
            raise RequestError(f"stop is {self.stop!r}; expected a list of strings")
        if "" in self.stop:
            raise RequestError("a stop string is empty; it would end every text before it begins")
        if not _is_list(self.stop_token_ids) or not all(type(token) is int for token in self.stop_token_ids):
            raise RequestError(f"stop_token_ids is {self.stop_token_ids!r}; expected a list of token ids")
        if not _is_list(self.processors) or not all(map(callable, self.processors)):
            raise RequestError(f"processors is {self.processors!r}; expected a list of functions")
        if self.sampling is not None and not isinstance(self.sampling, Sampling):
            raise RequestError(
                f"sampling is {self.sampling!r}; expected one such as Sampling(temperature=0.8), or None"
            )
        for name, value, least in (
            ("max_tokens", self.max_tokens, 1),
            ("min_tokens", self.min_tokens, 0),
            ("n", self.n, 1),
            ("logprobs", self.logprobs, 0),
        ):
            if value is not None and (type(value) is not int or value < least):
                raise RequestError(f"{name} is {value!r}; a whole number of at least {least} is expected")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(f"min_tokens is {self.min_tokens}, more than max_tokens ({self.max_tokens})")


def settings_or_default(
    given: GenerationSettings | None, *, max_tokens: int | None = None
) -> GenerationSettings:
    """What a caller gave as settings, with ``max_tokens`` where that is given beside them.

    Raises:
        RequestError: it is something else.
    """
    settings = GenerationSettings() if given is None else given
    if not isinstance(settings, GenerationSettings):
        raise RequestError(
            f"settings is {given!r:.200}; expected GenerationSettings, such as "
            "GenerationSettings(max_tokens=32, sampling=Sampling(temperature=0.8))"
        )
    return settings if max_tokens is None else replace(settings, max_tokens=max_tokens)


def _is_list(given: object) -> bool:
    return isinstance(given, Collection) and not isinstance(given, str | bytes | Mapping)
