"""What a session is asked for, checked before anything runs."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from fuel_core.blocks.decoder import Decoder
from fuel_core.cache import Cache, check_geometry
from fuel_core.errors import CapacityError, RequestError
from fuel_core.plans.model_plan import ModelPlan


def as_rows(token_ids: Any) -> list[list[int]]:
    """``[B, T]`` ids as lists.

    Raises:
        RequestError: it is no such array of whole numbers.
    """
    try:
        return [
            row.tolist() if isinstance(row, Tensor) else list(row)
            for row in (token_ids.tolist() if isinstance(token_ids, Tensor) else token_ids)
        ]
    except TypeError as error:
        raise RequestError(f"token ids are a [batch, tokens] array of whole numbers: {error}") from error


def check_request(
    decoder: Decoder, token_ids: Sequence[Sequence[int]], caches: Sequence[Cache | None]
) -> None:
    """Check that ``token_ids[b]`` can be appended to ``caches[b]``; see ``DecodeSession.step``.

    Raises:
        RequestError: rows of other lengths, rows of several pools, an id out of the vocabulary.
        GeometryError: the caches do not fit the model.
        CapacityError: a row or the trained context cannot hold the tokens.
    """
    plan = decoder.plan
    if not token_ids or len(token_ids) != len(caches):
        raise RequestError(f"{len(token_ids)} row(s) of tokens for {len(caches)} cache(s)")
    if len({len(ids) for ids in token_ids}) > 1:
        raise RequestError(
            f"rows of {[len(ids) for ids in token_ids]} tokens in one step; there is no padding: "
            "prefill each row by itself"
        )
    active = [cache for cache in caches if cache is not None]
    if not active or (len(active) < len(caches) and len(token_ids[0]) != 1):
        raise RequestError("a step needs a cache, and idle rows stand only in steps of one token")
    pool = active[0].pool
    if not all(pool.holds(cache) for cache in active) or len({c.row for c in active}) < len(active):
        raise RequestError("the caches of one step must be different rows of one pool, not released")
    check_geometry(plan.family, pool, plan.cache, plan.numerics.cache, decoder.device)
    for ids, cache in zip(token_ids, caches, strict=True):
        _check_row(plan, ids, cache)


def _check_row(plan: ModelPlan, token_ids: Sequence[int], cache: Cache | None) -> None:
    for token in token_ids:
        if type(token) is not int:
            raise RequestError(f"token id {token!r} is of {type(token).__name__}, a whole number is expected")
        if not 0 <= token < plan.vocab_size:
            raise RequestError(f"token id {token} is outside of the vocabulary of {plan.vocab_size}")
    if cache is None:
        return
    cache.require(len(token_ids))
    length = cache.length + len(token_ids)
    if length > plan.position_limit:
        raise CapacityError(f"{length} tokens exceed the {plan.position_limit} positions that this model has")
