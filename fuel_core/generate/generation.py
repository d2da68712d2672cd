"""Continuing prompts: what every model with a tokenizer and a decode session can do."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, overload

import torch

from fuel_core.blocks.decoder import Decoder
from fuel_core.decode import Backend, DecodeSession
from fuel_core.errors import CapacityError, FuelWarning, RequestError
from fuel_core.generate.completion import Completion
from fuel_core.generate.kept_session import KeptSession, ModelState, SessionRequest, roomy
from fuel_core.generate.off_loop import off_loop
from fuel_core.generate.prompt import Prompt, as_prompts, check_token_ids, place_of, read_prompts
from fuel_core.generate.run import GenerationRun, TextStream
from fuel_core.generate.sampling import Sampling
from fuel_core.generate.sequence import Stopping
from fuel_core.generate.settings import DEFAULT_MAX_TOKENS, GenerationSettings, settings_or_default
from fuel_core.plans.model_plan import ModelPlan
from fuel_core.text.chat_template import ChatTemplate
from fuel_core.text.tokenizer import Tokenizer

Message = Mapping[str, Any]
"""One turn of a conversation: ``role``, ``content`` and what else a template reads."""

DEFAULT_BATCH = 8
"""Rows that run at a time when many prompts are given."""


class Generation(ABC):
    """Generation over a plan, a tokenizer and decode sessions."""

    load_s: float
    decoder: Decoder
    _kept_session: KeptSession

    @property
    @abstractmethod
    def plan(self) -> ModelPlan: ...

    @property
    @abstractmethod
    def tokenizer(self) -> Tokenizer: ...

    @property
    @abstractmethod
    def text_source(self) -> Tokenizer: ...

    @property
    @abstractmethod
    def chat_template(self) -> ChatTemplate: ...

    @property
    @abstractmethod
    def stop_token_ids(self) -> frozenset[int]: ...

    @property
    @abstractmethod
    def default_sampling(self) -> Sampling: ...

    @abstractmethod
    def _backend(self, asked: str | Backend | None) -> Backend: ...

    @abstractmethod
    def session(
        self, capacity: int | None = None, batch: int = 1, *, backend: str | Backend | None, strict: bool
    ) -> DecodeSession: ...

    def run(
        self,
        prompts: Sequence[Prompt],
        settings: GenerationSettings | None = None,
        *,
        batch: int = DEFAULT_BATCH,
        backend: str | Backend | None = None,
        strict: bool = False,
        session: DecodeSession | None = None,
    ) -> GenerationRun:
        """Continue many prompts; iterate over the result for pieces of text as they become final.

        Prompts of token ids run without a tokenizer too: ids come out, and their text is empty.

        On a backend that captures, the model keeps the session of a run that has ended for the next one
        of as many rows: its step is captured once for both, and :meth:`release_session` frees it.

        Args:
            settings: of every prompt.
            session: run in this session, whose rows keep what they hold of a prompt, instead of a new
                one; ``batch``, ``backend`` and ``strict`` are the session's then.
            batch: sequences that run at a time; a prompt that ends gives its place to the next.
            backend: how the planned step runs; by default ``cudagraph`` on CUDA, else ``eager``.
            strict: planning a batch size a second time raises ReplanError.

        Raises:
            RequestError: no prompt, an empty one, one that is neither text nor token ids of this model, or
                settings that contradict each other.
            CapacityError: a prompt and its ``max_tokens`` together exceed the model's positions.
            TokenizerError: the checkpoint has no tokenizer, and a prompt or a stop string is text.

        Nothing has run when one of these is raised.
        """
        settings = settings_or_default(settings)
        sampling = self.default_sampling if settings.sampling is None else settings.sampling
        settings = replace(settings, sampling=sampling)
        if type(batch) is not int or batch < 1:
            raise RequestError(f"batch is {batch!r}; at least one row is expected")
        self._check_ids(settings.stop_token_ids, sampling)
        tokens = self._tokens(prompts)
        tokenizer = self.tokenizer if settings.stop else self.text_source
        limit, whose = self.plan.position_limit, self._positions
        if session is not None:
            if session.decoder.weights is not self.decoder.weights:
                raise RequestError("the session is another model's; make one with session() of this model")
            if session.pool.capacity < limit:
                limit, whose = session.pool.capacity, "tokens that a row of the session holds"
        stopping = [
            self._stopping(ids, settings, limit, whose, place_of(place, len(tokens)))
            for place, ids in enumerate(tokens)
        ]
        capacity = max(len(ids) + stop.max_tokens for ids, stop in zip(tokens, stopping, strict=True))
        rows = min(batch, len(tokens) * settings.n)
        keep_prefix, done = session is not None, _nothing
        if session is None:
            session, done = self._session_for(capacity, rows, backend, strict)
        return GenerationRun(
            session,
            tokenizer,
            tokens,
            stopping,
            settings,
            self.load_s,
            keep_prefix=keep_prefix,
            done=done,
        )

    def prompt_tokens(self, prompt: Prompt, settings: GenerationSettings | None = None) -> list[int]:
        """The token ids of a prompt, which :meth:`run` accepts with these settings: nothing runs.

        Raises:
            RequestError: it is empty, or settings that contradict each other.
            CapacityError: it leaves too few of the model's positions for ``max_tokens``.
            TokenizerError: the checkpoint has no tokenizer.
        """
        (tokens,) = self._tokens([prompt])
        settings = settings or GenerationSettings()
        self._stopping(tokens, settings, self.plan.position_limit, self._positions, "the prompt")
        return tokens

    @property
    def _positions(self) -> str:
        return f"positions that this {self.plan.family} model has"

    def _session_for(
        self, capacity: int, rows: int, backend: str | Backend | None, strict: bool
    ) -> tuple[DecodeSession, Callable[[], None]]:
        """A session, the kept one if it fits, and what is to be called once a run has done with it."""
        chosen = self._backend(backend)
        if not chosen.runs_ahead(self.decoder.device):
            return self.session(capacity, rows, backend=chosen, strict=strict), _nothing
        asked = chosen if backend is chosen else chosen.name
        request = SessionRequest(rows=rows, capacity=capacity, backend=asked, strict=strict)
        state = ModelState.of(self.decoder)
        session = self._kept_session.take(request, state) or self._roomy_session(request, chosen)
        return session, partial(self._kept_session.give, session, request, state)

    def _roomy_session(self, request: SessionRequest, backend: Backend) -> DecodeSession:
        """A session that may serve longer requests too, if there is memory for one."""
        capacity = roomy(request.capacity, self.plan.position_limit)
        try:
            return self.session(capacity, request.rows, backend=backend, strict=request.strict)
        except torch.OutOfMemoryError:
            if capacity == request.capacity:
                raise
        return self.session(request.capacity, request.rows, backend=backend, strict=request.strict)

    def release_session(self) -> None:
        """Free the caches and graphs that the last run has left for the next one."""
        self._kept_session.clear()

    def _tokens(self, prompts: Sequence[Prompt]) -> list[list[int]]:
        tokens = []
        for prompt in read_prompts(prompts):
            tokens.append(self._encode(prompt) if isinstance(prompt, str) else prompt)
        check_token_ids(tokens, self.plan.vocab_size)
        return tokens

    def _encode(self, text: str) -> list[int]:
        ids = self.tokenizer.encode(text)
        if len(ids) > 1 and ids[0] == ids[1] and ids[0] in self.tokenizer.special_token_ids:
            warnings.warn(
                f"the prompt begins with token {ids[0]} twice: the text states it and the tokenizer adds it; "
                "give a conversation that a template has written to chat(), or as token ids",
                FuelWarning,
                stacklevel=4,
            )
        return ids

    def _check_ids(self, stop_token_ids: Sequence[int], sampling: Sampling) -> None:
        for name, ids in (("stop_token_ids", stop_token_ids), ("logit_bias", sampling.logit_bias)):
            wrong = [token for token in ids if not 0 <= token < self.plan.vocab_size]
            if wrong:
                raise RequestError(
                    f"{name} holds {wrong[0]}, outside of the vocabulary of {self.plan.vocab_size}"
                )

    def _stopping(
        self, prompt: Sequence[int], settings: GenerationSettings, limit: int, whose: str, what: str
    ) -> Stopping:
        if not prompt:
            raise RequestError(f"{what} is empty: a continuation needs at least one token")
        room = limit - len(prompt)
        if room < 1:
            raise CapacityError(
                f"a prompt of {len(prompt)} tokens leaves no room for a new one in the {limit} {whose}"
            )
        max_tokens = min(DEFAULT_MAX_TOKENS, room) if settings.max_tokens is None else settings.max_tokens
        if max_tokens > room:
            raise CapacityError(
                f"a prompt of {len(prompt)} tokens and {max_tokens} new ones exceed the {limit} {whose}"
            )
        # a checkpoint may name an end token that its model does not have
        own = {token for token in self.stop_token_ids if token < self.plan.vocab_size}
        return Stopping(
            max_tokens=max_tokens,
            min_tokens=settings.min_tokens,
            token_ids=frozenset(settings.stop_token_ids) | (set() if settings.ignore_eos else own),
            strings=tuple(settings.stop),
        )

    @overload
    def generate(  # type: ignore[overload-overlap]  # text is a sequence of text; the first wins
        self,
        prompt: Prompt,
        settings: GenerationSettings | None = None,
        *,
        max_tokens: int | None = None,
        backend: str | Backend | None = None,
        strict: bool = False,
    ) -> Completion: ...

    @overload
    def generate(
        self,
        prompt: Sequence[Prompt],
        settings: GenerationSettings | None = None,
        *,
        max_tokens: int | None = None,
        batch: int = DEFAULT_BATCH,
        backend: str | Backend | None = None,
        strict: bool = False,
    ) -> list[Completion]: ...

    def generate(
        self,
        prompt: Prompt | Sequence[Prompt],
        settings: GenerationSettings | None = None,
        *,
        max_tokens: int | None = None,
        batch: int = DEFAULT_BATCH,
        backend: str | Backend | None = None,
        strict: bool = False,
    ) -> Completion | list[Completion]:
        """Continue a prompt, or a list of prompts in batches; results in the order of the prompts.

        Args:
            prompt: text or token ids, which may be a 1-D tensor or array; or a list of such.
            max_tokens: overrides that of ``settings``.
            settings, batch, backend, strict, and what is raised: as for :meth:`run`.
        """
        prompts, single = as_prompts(prompt)
        settings = settings_or_default(settings, max_tokens=max_tokens)
        completions = self.run(prompts, settings, batch=batch, backend=backend, strict=strict).finish()
        return completions[0] if single else completions

    def stream(
        self,
        prompt: Prompt,
        settings: GenerationSettings | None = None,
        *,
        max_tokens: int | None = None,
        backend: str | Backend | None = None,
        strict: bool = False,
        session: DecodeSession | None = None,
    ) -> TextStream:
        """Continue one prompt once; iterate over the result for its text, piece by piece.

        For several prompts or continuations iterate over :meth:`run`.

        Raises:
            RequestError: ``settings.n`` is not 1; else as :meth:`run`.
        """
        settings = settings_or_default(settings, max_tokens=max_tokens)
        if settings.n != 1:
            raise RequestError(f"a stream is one continuation, n is {settings.n}; iterate over run() instead")
        return TextStream(self.run([prompt], settings, backend=backend, strict=strict, session=session))

    def chat_prompt(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        continue_final_message: bool = False,
        template_variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """The token ids of a conversation, by the checkpoint's own template.

        ``chat_template.encode`` takes everything else that a template may ask for.

        Args:
            tools, documents, continue_final_message: as ``chat_template.render`` says.
            template_variables: what else the template lets a caller choose, such as
                ``{"enable_thinking": False}``.

        Raises:
            RequestError: the checkpoint has no template, the messages are ill-formed, the template never
                reads one of the variables, or it refuses the conversation.
        """
        return self.chat_template.encode(
            self.tokenizer,
            messages,
            tools=tools,
            documents=documents,
            continue_final_message=continue_final_message,
            variables=template_variables,
        )

    def chat(
        self,
        messages: Sequence[Message],
        settings: GenerationSettings | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_variables: Mapping[str, Any] | None = None,
        max_tokens: int | None = None,
    ) -> Completion:
        """Answer a conversation: :meth:`generate` from its :meth:`chat_prompt`."""
        prompt = self.chat_prompt(messages, tools=tools, template_variables=template_variables)
        return self.generate(prompt, settings, max_tokens=max_tokens)

    def stream_chat(
        self,
        messages: Sequence[Message],
        settings: GenerationSettings | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_variables: Mapping[str, Any] | None = None,
        max_tokens: int | None = None,
        session: DecodeSession | None = None,
    ) -> TextStream:
        """Answer a conversation: :meth:`stream` from its :meth:`chat_prompt`."""
        prompt = self.chat_prompt(messages, tools=tools, template_variables=template_variables)
        return self.stream(prompt, settings, max_tokens=max_tokens, session=session)

    async def agenerate(
        self,
        prompt: Prompt,
        settings: GenerationSettings | None = None,
        *,
        max_tokens: int | None = None,
    ) -> Completion:
        """As :meth:`generate` for one prompt, off the event loop; ends within a token when cancelled."""
        settings = settings_or_default(settings, max_tokens=max_tokens)
        run = self.run([prompt], settings)
        async for _ in off_loop(run):
            pass
        return run.completions[0]

    async def astream(
        self,
        prompt: Prompt,
        settings: GenerationSettings | None = None,
        *,
        max_tokens: int | None = None,
    ) -> AsyncIterator[str]:
        """As :meth:`stream`, off the event loop; ends within a token when cancelled or closed."""
        run = self.stream(prompt, settings, max_tokens=max_tokens)
        async for text in off_loop(run):
            yield text


def _nothing() -> None:
    pass
