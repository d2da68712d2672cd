"""Choosing the next token of each row, in fixed shapes: no size depends on a value, and nothing is read
on the host. So it can be captured behind a step.

Letters: B rows, V vocabulary, N places of a row's candidates (as many as V).

Source: the order and the kept sets are those of the logits warpers of transformers 5.23:
temperature, top-k, top-p, min-p.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_SMALLEST_TEMPERATURE = torch.finfo(torch.float32).tiny

_ALL_TOKENS = 2**31
"""More than any vocabulary has, and exact in every type that holds it here."""


@dataclass(frozen=True, kw_only=True)
class RowChoice:
    """How the next token of one row is chosen. The defaults take the most probable token.

    Attributes:
        temperature, top_k, top_p, min_p: as :class:`fuel_core.generate.sampling.Sampling` has them.
        number: uniform in [0, 1): the chosen token is where the cumulative mass passes this share of it.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    number: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ChoiceParts:
    """Which parts of the computation some row needs. More parts change no row that does not need them."""

    draw: bool
    top_k: bool
    top_p: bool
    min_p: bool

    @classmethod
    def of(cls, rows: Sequence[RowChoice]) -> "ChoiceParts":
        drawn = [row for row in rows if row.temperature > 0]
        return cls(
            draw=bool(drawn),
            top_k=any(row.top_k > 0 for row in drawn),
            top_p=any(row.top_p < 1 for row in drawn),
            min_p=any(row.min_p > 0 for row in drawn),
        )


CHOICE_NUMBERS = 5
"""Numbers that say how a row's token is chosen."""


def choice_numbers(rows: Sequence[RowChoice]) -> list[tuple[float, ...]]:
    """The content of ``choices_B5``, which :func:`choose` reads: a float64 tensor holds it exactly.

    ``top_p`` stands as the mass that it cuts off, taken from 1 in the host's double precision.
    """
    return [
        (row.temperature, min(row.top_k, _ALL_TOKENS), 1 - row.top_p, row.min_p, row.number) for row in rows
    ]


def scaled(logits_BV: Tensor, temperature_B1: Tensor) -> Tensor:
    """Scores in float32: the largest of a row is 0, and no temperature overflows; the others sink to -inf."""
    scores = logits_BV.to(torch.float32)
    scores = scores - scores.amax(-1, keepdim=True)
    return scores / temperature_B1.to(torch.float32).clamp(min=_SMALLEST_TEMPERATURE)


def rank(scores_BV: Tensor, top_k_B1: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The least score that top-k keeps ``[B, 1]``; the scores in ascending order, those below it as -inf;
    their ids.

    Of equal scores the lower id comes first; ids of -inf are any. ``top_k`` 0 keeps all.
    """
    vocabulary = scores_BV.shape[-1]
    ascending_BN, ids_BN = scores_BV.sort(dim=-1, stable=True)
    place_B1 = (vocabulary - top_k_B1).clamp(min=0).masked_fill(top_k_B1 == 0, 0)
    floor_B1 = ascending_BN.gather(-1, place_B1)
    return floor_B1, ascending_BN.masked_fill(ascending_BN < floor_B1, -torch.inf), ids_BN


def candidates(logits_BV: Tensor, choices_B5: Tensor, parts: ChoiceParts) -> tuple[Tensor, Tensor]:
    """The ids that may be drawn and their scores, float32 ``[B, N]``; -inf where one may not be.

    A row under top-p has them in ascending order, another one by id. Its largest logit must be finite.
    """
    temperature_B1, top_k_B1, cut_B1, min_p_B1, _ = choices_B5.split(1, dim=-1)
    scores = scaled(logits_BV, temperature_B1)
    ids = torch.arange(scores.shape[-1], device=scores.device).expand_as(scores)
    if parts.top_k or parts.top_p:
        floor_B1, ascending, order = rank(scores, top_k_B1.to(torch.int64))
        scores = scores.masked_fill(scores < floor_B1, -torch.inf)
    if parts.top_p:
        mass = ascending.softmax(-1).cumsum(-1, dtype=torch.float64)  # a GPU sums in any order
        # all but the best token, which is kept whatever is cut off
        ascending[..., :-1].masked_fill_(mass[..., :-1] <= cut_B1, -torch.inf)
        under_top_p = cut_B1 > 0
        ids, scores = torch.where(under_top_p, order, ids), torch.where(under_top_p, ascending, scores)
    if parts.min_p:
        scores = scores.masked_fill(scores.exp() < min_p_B1.to(torch.float32), -torch.inf)  # the best is 0
    return ids, scores


def choose(logits_BV: Tensor, choices_B5: Tensor, parts: ChoiceParts) -> Tensor:
    """Choose a token for each row.

    Of equal maxima, the most probable token is the one of the lowest id. NaN counts as the maximum, so that
    one number shows it anywhere.

    Returns:
        float64 ``[B, 2]``: the token's id, which is the largest logit's unless that one is finite and
        the row draws; and the largest logit. A caller refuses a row where that one is not finite.
    """
    best_B1 = logits_BV.argmax(-1, keepdim=True)
    peak_B1 = logits_BV.gather(-1, best_B1).double()
    if not parts.draw:
        return torch.cat((best_B1.double(), peak_B1), dim=-1)
    ids, scores = candidates(logits_BV, choices_B5, parts)
    mass = scores.double().softmax(-1).cumsum(-1)
    # Below the total mass even after rounding: the number is at most 1 - 2**-53.
    target_B1 = choices_B5[:, 4:] * mass[:, -1:]
    place_B1 = torch.searchsorted(mass, target_B1, right=True)
    place_B1 = place_B1.clamp(max=mass.shape[-1] - 1)  # beyond it where the mass is NaN
    draws_B1 = (choices_B5[:, :1] > 0) & peak_B1.isfinite()
    token_B1 = torch.where(draws_B1, ids.gather(-1, place_B1), best_B1)
    return torch.cat((token_B1.double(), peak_B1), dim=-1)


def choose_now(logits_BV: Tensor, rows: Sequence[RowChoice]) -> Tensor:
    """As :func:`choose`, of logits that are there already; the result is on the host."""
    choices_B5 = torch.tensor(choice_numbers(rows), dtype=torch.float64, device=logits_BV.device)
    return choose(logits_BV, choices_B5, ChoiceParts.of(rows)).cpu()
