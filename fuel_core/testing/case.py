"""One tiny model to test: a family's config with random weights that make every part matter."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fuel_core.blocks.decoder import Decoder
from fuel_core.cache import Cache, CachePool
from fuel_core.decode import Backend, DecodeSession, EagerBackend
from fuel_core.family import Family
from fuel_core.plans.model_plan import ModelPlan, Numerics
from fuel_core.weights.initialise import randomise
from fuel_core.weights.save import save_checkpoint

TOKENS = 72
"""Tokens of a test sequence: at least 64, past the windows and original contexts of tiny configs."""

PREFILLED = 20
"""Tokens of it that are prefilled; the rest is decoded one by one."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A family's tiny config as a model.

    Attributes:
        family, tiny: which config.
        raw: its config.json, text ids null so that no oracle guesses at padding.
        decoder: the model.
    """

    family: Family
    tiny: str
    raw: Mapping[str, Any]
    decoder: Decoder

    @classmethod
    def build(
        cls,
        family: Family,
        tiny: str,
        *,
        dtype: torch.dtype = torch.float64,
        seed: int = 0,
        raw: Mapping[str, Any] | None = None,
        plan: ModelPlan | None = None,
    ) -> "Case":
        """Build a tiny config; ``raw`` or ``plan`` replace what the family states for it."""
        raw = dict(family.tiny[tiny]) if raw is None else dict(raw)
        raw |= dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
        config, _ = family.config.read(raw, source=f"tiny config {tiny!r}")
        plan = plan or family.plan(config, family.options())
        numerics = Numerics(weights=dtype, activations=dtype, cache=dtype)
        with torch.device("meta"):
            decoder = family.build(config, plan.with_numerics(numerics))
        randomise(decoder, torch.Generator().manual_seed(seed))
        return cls(family=family, tiny=tiny, raw=raw, decoder=decoder)

    @property
    def plan(self) -> ModelPlan:
        return self.decoder.plan

    def with_plan(self, plan: ModelPlan) -> "Case":
        """The same weights under another plan of the same parts."""
        config, _ = self.family.config.read(self.raw, source=f"tiny config {self.tiny!r}")
        with torch.device("meta"):
            decoder = self.family.build(config, plan)
        decoder.share_weights(self.decoder)
        return replace(self, decoder=decoder)

    def token_ids(self, seed: int, count: int = TOKENS) -> list[int]:
        """A random sequence; equal seeds give equal sequences."""
        drawn = random.Random(seed)
        return [drawn.randrange(self.plan.vocab_size) for _ in range(count)]

    def pool(self, rows: int = 1, capacity: int = TOKENS) -> CachePool:
        return CachePool(self.plan.cache, rows=rows, capacity=capacity, dtype=self.plan.numerics.cache)

    def session(
        self,
        rows: int = 1,
        *,
        capacity: int = TOKENS,
        backend: Backend | None = None,
        strict: bool = True,
    ) -> DecodeSession:
        pool = self.pool(rows, capacity)
        caches = [pool.acquire() for _ in range(rows)]
        return DecodeSession(self.decoder, caches, backend or EagerBackend(), strict=strict)

    def one_shot(self, token_ids: list[int]) -> torch.Tensor:
        """The logits of every position by the one-shot forward, ``[T, V]``."""
        with torch.no_grad():
            return self.decoder(torch.tensor([token_ids]))[0]

    def decode(
        self,
        session: DecodeSession,
        token_ids: list[int],
        *,
        prefilled: int = PREFILLED,
        chunk_tokens: int = 7,
        cache: Cache | None = None,
    ) -> torch.Tensor:
        """The logits of every position through a cache, ``[T, V]``, as :meth:`decode_in_turn` gives them."""
        turns = self.decode_in_turn(
            session, token_ids, prefilled=prefilled, chunk_tokens=chunk_tokens, cache=cache
        )
        return torch.cat(list(turns))

    def decode_in_turn(
        self,
        session: DecodeSession,
        token_ids: list[int],
        *,
        prefilled: int = PREFILLED,
        chunk_tokens: int = 7,
        cache: Cache | None = None,
    ) -> Iterator[torch.Tensor]:
        """The logits of a chunked prefill, then of one token after the other, each ``[T, V]``. At least
        three are decoded: the first only plans, rebinding starts at the second."""
        assert len(token_ids) - prefilled >= 3, "vacuous: fewer than three tokens are decoded"
        cache = cache or session.caches[0]
        yield session.prefill(token_ids[:prefilled], cache, chunk_tokens=chunk_tokens, all_positions=True)
        for token in token_ids[prefilled:]:
            yield session.step([[token]], (cache,))

    def save(self, folder: Path) -> None:
        """Write this model as a published checkpoint."""
        save_checkpoint(folder, self.decoder, self.family.weights, self.raw)
