"""A loaded model: forward passes and decode sessions; see ``generate.generation`` for text.

Letters: B sequences, T tokens, M model width, V vocabulary.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from fuel_core.blocks.decoder import Decoder
from fuel_core.cache import CachePool
from fuel_core.config import FamilyConfig, Ledger
from fuel_core.decode import Backend, DecodeSession, backend_named, default_backend
from fuel_core.errors import CapacityError, CheckpointError, FuelWarning, GeometryError, RequestError
from fuel_core.family import Family
from fuel_core.generate.checkpoint_sampling import checkpoint_sampling
from fuel_core.generate.generation import Generation
from fuel_core.generate.kept_session import KeptSession
from fuel_core.generate.sampling import Sampling
from fuel_core.generate.stopping import GENERATION_CONFIG_FILE, read_generation_config, stop_token_ids
from fuel_core.plans.model_plan import ModelPlan
from fuel_core.text.chat_template import ChatTemplate
from fuel_core.text.tokenizer import Tokenizer, has_tokenizer_files
from fuel_core.weights.save import copy_companions, save_checkpoint


def family_options(family: Family, chosen: Mapping[str, Any] | None) -> Any:
    """The options of a family with the user's choices, which may be spelt as text (``"1e4"``).

    Raises:
        RequestError: the family has no such option, or not this choice.
    """
    if chosen is not None and not isinstance(chosen, Mapping):
        raise RequestError(f"options is {chosen!r}; a mapping such as {{'name': 'choice'}} is expected")
    known = [option.name for option in fields(family.options)]
    unknown = sorted(set(chosen or {}) - set(known))
    if unknown:
        raise RequestError(
            f"{family.name} has no option {', '.join(unknown)}; it has {', '.join(known) or 'none'}"
        )
    try:
        return TypeAdapter(family.options).validate_python(dict(chosen or {}))
    except ValidationError as error:
        faults = [
            f"{'.'.join(map(str, fault['loc']))} is {fault['input']!r}: {fault['msg']}"
            for fault in error.errors(include_url=False)
        ]
        raise RequestError(f"{family.name} cannot use these options: {'; '.join(faults)}") from error


@dataclass(frozen=True, eq=False, repr=False)
class LanguageModel(Generation):
    """A model of an installed family with its weights.

    Attributes:
        family, config, options, plan: what it is.
        decoder: the torch module; its parameters take no gradient until you say so.
        folder: the checkpoint folder.
        raw_config: the content of its config.json.
        ledger: what became of each key of it.
        load_s: seconds that loading took.
    """

    family: Family
    config: FamilyConfig
    options: Any
    decoder: Decoder
    folder: Path
    raw_config: Mapping[str, Any]
    ledger: Ledger
    load_s: float
    _kept_session: KeptSession = field(default_factory=KeptSession, init=False, repr=False)

    def __repr__(self) -> str:
        parameters = sum(parameter.numel() for parameter in self.decoder.parameters())
        dtype = str(self.plan.numerics.weights).removeprefix("torch.")
        return (
            f"<LanguageModel {self.family.name} from {str(self.folder)!r}: {parameters:,} parameters, "
            f"{dtype}, {self.device}>"
        )

    @property
    def plan(self) -> ModelPlan:
        return self.decoder.plan

    @property
    def device(self) -> torch.device:
        return self.decoder.device

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The checkpoint's tokenizer, read on first use.

        Raises:
            TokenizerError: its files are missing or unreadable.
        """
        return Tokenizer.from_folder(self.folder)

    @cached_property
    def text_source(self) -> Tokenizer:
        """What gives generated ids their text: the tokenizer, or, where the folder has no file of one, one
        without a vocabulary, by which every text is empty; that is warned of once.

        Raises:
            TokenizerError: as :attr:`tokenizer`, where some of the files are there.
        """
        if has_tokenizer_files(self.folder):
            return self.tokenizer
        warnings.warn(
            f"{self.folder} has no tokenizer: token ids are continued, and the text of what comes is empty",
            FuelWarning,
            stacklevel=2,
        )
        return Tokenizer.without_vocabulary()

    @cached_property
    def chat_template(self) -> ChatTemplate:
        """The checkpoint's chat template, read on first use.

        Raises:
            RequestError: it has none.
        """
        return ChatTemplate.from_folder(self.folder)

    @cached_property
    def stop_token_ids(self) -> frozenset[int]:
        """The tokens that end a generation: the union of what the config, the generation config and
        the tokenizer name."""
        return stop_token_ids(
            self.raw_config,
            read_generation_config(self.folder),
            self.text_source.eos_token_ids,
            folder=self.folder,
        )

    @cached_property
    def default_sampling(self) -> Sampling:
        """How tokens are chosen where a request does not say: :meth:`sampling` of nothing."""
        return self.sampling()

    def sampling(self, **asked: Any) -> Sampling:
        """The sampling that the checkpoint's generation_config.json asks for, with these fields of
        :class:`Sampling` in place of its own.

        Raises:
            RequestError: a value that is asked for is out of its range, or no field of it.
            ConfigError: one of the file is out of its range.
        """
        source = str(self.folder / GENERATION_CONFIG_FILE)
        return checkpoint_sampling(read_generation_config(self.folder), asked, source=source)

    # One-shot forward passes: no cache, differentiable.

    def forward(
        self,
        token_ids: Tensor | Sequence[Sequence[int]] | None = None,
        *,
        embeddings: Tensor | None = None,
        start_pos: int = 0,
        mask: Tensor | None = None,
        last_only: bool = False,
    ) -> Tensor:
        """The logits of every position, ``[B, T, V]``, or of the last, ``[B, V]``; float32 or wider.

        Args:
            token_ids: ``[B, T]``; or else ``embeddings``.
            embeddings: ``[B, T, M]``, as :meth:`embed` returns them.
            start_pos: the position of the first token.
            mask: broadcastable to ``[B, T, T]`` (query, key), bool (True: visible) or added to the
                scores. It replaces every layer's causal mask and window.

        Raises:
            RequestError: no token, an id out of the vocabulary, both inputs or none.
            CapacityError: more positions than the model has.
            GeometryError: embeddings or a mask of another shape.
        """
        hidden = self.hidden_states(token_ids, embeddings=embeddings, start_pos=start_pos, mask=mask)
        return self.decoder.logits(hidden[:, -1] if last_only else hidden)

    def hidden_states(
        self,
        token_ids: Tensor | Sequence[Sequence[int]] | None = None,
        *,
        embeddings: Tensor | None = None,
        start_pos: int = 0,
        mask: Tensor | None = None,
    ) -> Tensor:
        """As :meth:`forward`, but the states after the final norm: ``[B, T, M]``."""
        if (token_ids is None) == (embeddings is None):
            raise RequestError("give either token_ids or embeddings")
        if embeddings is None:
            assert token_ids is not None
            embeddings = self.embed(token_ids)
        width, dtype = self.plan.hidden_size, self.plan.numerics.activations
        if embeddings.dtype is not dtype:
            raise GeometryError(f"embeddings of {embeddings.dtype}; this model's activations are {dtype}")
        if embeddings.dim() != 3 or embeddings.shape[-1] != width or 0 in embeddings.shape:
            raise GeometryError(
                f"{self.family.name}: embeddings of shape {list(embeddings.shape)}; [batch, tokens, {width}] "
                "is expected, with at least one token"
            )
        batch, tokens = embeddings.shape[:2]
        if start_pos < 0 or start_pos + tokens > self.plan.position_limit:
            raise CapacityError(
                f"{self.family.name}: positions {start_pos}..{start_pos + tokens - 1} are outside of the "
                f"{self.plan.position_limit} that this model has"
            )
        if mask is not None:
            self._check_mask(mask, batch, tokens)
        return self.decoder.hidden(None, embeddings, start_pos, mask)

    def embed(self, token_ids: Tensor | Sequence[Sequence[int]]) -> Tensor:
        """The embeddings of tokens, ``[B, T, M]``.

        Raises:
            RequestError: no token, ragged rows, or an id out of the vocabulary.
        """
        try:
            given = torch.as_tensor(token_ids, device=self.device)
            if given.numel() and (given.is_floating_point() or given.dtype is torch.bool):
                raise RequestError(f"token_ids are {given.dtype}; whole numbers are expected")
            ids = given.to(torch.int64)
        except (ValueError, TypeError) as error:
            raise RequestError(f"token_ids are no [batch, tokens] array of ids: {error}") from error
        if ids.dim() != 2 or ids.numel() == 0:
            raise RequestError(
                f"token_ids of shape {list(ids.shape)}; [batch, tokens] with a token is expected"
            )
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= self.plan.vocab_size:
            wrong = low if low < 0 else high
            raise RequestError(f"token id {wrong} is outside of the vocabulary of {self.plan.vocab_size}")
        return self.decoder.embeddings(ids)

    def _check_mask(self, mask: Tensor, batch: int, tokens: int) -> None:
        if not (mask.dtype is torch.bool or mask.is_floating_point()):
            raise GeometryError(f"a mask is bool or floating, got {mask.dtype}")
        shapes = ((tokens, tokens), (1, tokens, tokens), (batch, tokens, tokens))
        if tuple(mask.shape) not in shapes:
            raise GeometryError(
                f"a mask of shape {list(mask.shape)}; [{tokens}, {tokens}] or [{batch}, {tokens}, {tokens}] "
                "is expected"
            )

    # Decoding.

    def session(
        self,
        capacity: int | None = None,
        batch: int = 1,
        *,
        backend: str | Backend | None = None,
        strict: bool = False,
    ) -> DecodeSession:
        """A decode session over ``batch`` new rows of ``capacity`` tokens (by default the whole context).

        Args:
            backend: the name of a backend, or one; by default ``cudagraph`` on CUDA, else ``eager``.
            strict: planning a batch size a second time raises ReplanError.

        Raises:
            RequestError: no row or no capacity.
            CapacityError: more than the positions that the model has.
        """
        pool = self.cache_pool(rows=batch, capacity=capacity)
        return DecodeSession(
            self.decoder,
            [pool.acquire() for _ in range(batch)],
            self._backend(backend),
            strict=strict,
        )

    def _backend(self, asked: str | Backend | None) -> Backend:
        if asked is None:
            return default_backend(self.device)
        return backend_named(asked) if isinstance(asked, str) else asked

    def cache_pool(self, rows: int, capacity: int | None = None) -> CachePool:
        """A pool of caches that fits this model.

        Raises:
            RequestError: no row or no capacity.
            CapacityError: more than the positions that the model has.
        """
        limit = self.plan.position_limit
        if type(rows) is not int or type(capacity) not in (int, type(None)):
            raise RequestError(
                f"{rows!r} row(s) of a capacity of {capacity!r} tokens; whole numbers are expected"
            )
        if capacity is not None and capacity > limit:
            raise CapacityError(
                f"{self.family.name}: a capacity of {capacity} tokens exceeds the {limit} positions that "
                "this model has"
            )
        return CachePool(
            self.plan.cache,
            rows=rows,
            capacity=limit if capacity is None else capacity,
            dtype=self.plan.numerics.cache,
            device=self.device,
        )

    # Variants and files.

    def with_options(self, **options: Any) -> "LanguageModel":
        """The same weights read with other options: no copy, and held plans may be shared.

        Raises:
            RequestError: the family has no such option.
        """
        chosen = family_options(self.family, {**asdict(self.options), **options})
        plan = self.family.plan(self.config, chosen).with_numerics(self.plan.numerics)
        with torch.device("meta"):
            decoder = self.family.build(self.config, plan)
        decoder.share_weights(self.decoder)
        return replace(self, options=chosen, decoder=decoder)

    def save(self, folder: Path | str) -> None:
        """Write a checkpoint folder: config.json and model.safetensors in the family's published layout, and
        the files of the tokenizer, generation_config.json and chat templates as the model's own folder has
        them. Files of these names are replaced; what else lies in the folder is left.

        Raises:
            CheckpointError: the model's own folder is not there any more; config and weights are written.
            RequestError: the model was loaded with options, which config.json cannot hold.
        """
        if self.options != self.family.options():
            raise RequestError(
                f"{self.options} would be lost, as config.json holds no options: state what they choose in "
                "config.json itself, or save with_options() of their defaults"
            )
        target = Path(folder).expanduser()
        save_checkpoint(target, self.decoder, self.family.weights, self.raw_config)
        if not self.folder.is_dir():
            raise CheckpointError(
                f"config.json and weights are in {folder}, and no tokenizer: {self.folder} is gone; copy one"
            )
        copy_companions(self.folder, target)
