"""Choosing one token from the logits of a position.

Letters: B rows (of which there is one here), V vocabulary, N places of candidates.

What is computed stands in :mod:`fuel_core.decode.token_choice`, since a device may have to compute it
behind a step. Penalties come before it; see ``penalties``.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from fuel_core.decode.token_choice import ChoiceParts, RowChoice, candidates, choice_numbers, choose, scaled
from fuel_core.errors import GeometryError, RequestError

_CHOICE_STRIDE = 0x9E3779B97F4A7C15
"""Odd, so that no two choices share a seed; large, so that neighbouring seeds do not meet (2**64 / phi)."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How tokens are chosen.

    Attributes:
        temperature: 0 takes the most probable token; 1 samples from the model's distribution.
        top_k: keep the k most probable tokens and those tied with the last; 0 keeps all.
        top_p: keep the smallest set of most probable tokens that holds this mass; 1.0 keeps all.
            0 is refused: it asks for what ``temperature=0`` says plainly.
        min_p: keep the tokens of at least this share of the best one's probability; 0 keeps all.
        repetition_penalty: divides the positive logits of tokens of prompt and continuation, multiplies
            the negative ones; 1 is off.
        presence_penalty: taken from the logit of each token generated so far; 0 is off.
        frequency_penalty: likewise, times how often it was generated.
        logit_bias: token id -> what is added to its logit.
        seed: fixes the choices of a request; None draws a fresh seed for each.

    Raises:
        RequestError: a value is out of its range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None

    def __post_init__(self) -> None:
        if not _is_number(self.temperature) or not 0 <= self.temperature < math.inf:
            raise RequestError(
                f"temperature is {self.temperature!r}; expected a finite number >= 0 "
                "(0 takes the most probable token)"
            )
        if not _is_integer(self.top_k) or self.top_k < 0:
            raise RequestError(f"top_k is {self.top_k!r}; expected an integer >= 0 (0 keeps all tokens)")
        if not _is_number(self.top_p) or not 0 < self.top_p <= 1:
            raise RequestError(
                f"top_p is {self.top_p!r}; expected a number in (0, 1] (1 keeps all tokens; for the most "
                "probable alone say temperature=0)"
            )
        if not _is_number(self.min_p) or not 0 <= self.min_p <= 1:
            raise RequestError(f"min_p is {self.min_p!r}; expected a number in [0, 1] (0 keeps all tokens)")
        if not _is_number(self.repetition_penalty) or not 0 < self.repetition_penalty < math.inf:
            raise RequestError(
                f"repetition_penalty is {self.repetition_penalty!r}; expected a number > 0 (1 is off)"
            )
        for name, value in (
            ("presence_penalty", self.presence_penalty),
            ("frequency_penalty", self.frequency_penalty),
        ):
            if not _is_number(value) or not math.isfinite(value):
                raise RequestError(f"{name} is {value!r}; expected a finite number (0 is off)")
        if not isinstance(self.logit_bias, Mapping):
            raise RequestError(f"logit_bias is {self.logit_bias!r}; expected a mapping such as {{5: -1.0}}")
        for token, bias in self.logit_bias.items():
            if not _is_integer(token) or token < 0 or not _is_number(bias) or not bias < math.inf:
                raise RequestError(
                    f"logit_bias gives {token!r} {bias!r}; expected a token id and a number below infinity"
                )
        if self.seed is not None and not (_is_integer(self.seed) and 0 <= self.seed < 2**64):
            raise RequestError(f"seed is {self.seed!r}; expected None or an integer in 0..2**64-1")


class Sampler:
    """Chooses the tokens of one request, one call a token.

    Holds its own random numbers: neither torch's global generator nor another request moves them.
    They are drawn on the CPU, one per token, so that one seed gives one stream on every device.
    """

    def __init__(self, sampling: Sampling, choice: int = 0) -> None:
        """``choice`` counts the continuations of one prompt: each has a stream of its own."""
        self.sampling = sampling
        self._generator = torch.Generator()
        self._numbers: deque[float] = deque()
        if sampling.seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed((sampling.seed + choice * _CHOICE_STRIDE) % 2**64)

    def choice(self, ahead: int = 0) -> RowChoice:
        """How the next token is chosen, or one that is so many further on: no token before it matters.

        Penalties and biases, which change the logits before, are not in it.
        """
        return _row_choice(self.sampling, self._number(ahead) if self.sampling.temperature else 0.0)

    def count(self, token: int, peak: float) -> int:
        """Count a token that was chosen by :meth:`choice`; return it.

        Raises:
            RequestError: the largest logit is NaN or infinite, so that no token can be chosen.
        """
        if not math.isfinite(peak):
            raise RequestError(
                f"the largest logit is {peak} (token {token}): the model's numbers overflowed or its weights "
                "are damaged"
            )
        if self._numbers:
            self._numbers.popleft()
        return token

    def __call__(self, logits_V: torch.Tensor) -> int:
        """Return the id of the chosen token; of equal maxima, greedy choice takes the lowest id.

        Raises:
            GeometryError: the logits are no vector, or empty.
            RequestError: no token can be chosen, since the largest logit is NaN or infinite.
        """
        if logits_V.ndim != 1 or logits_V.numel() == 0:
            raise GeometryError(f"logits of one position expected, got shape {tuple(logits_V.shape)}")
        row = self.choice()
        ids = _kept_by_top_k(logits_V, row)
        few = logits_V if ids is None else logits_V[ids]
        place, peak = choose(few[None], _choices_B5(row, few.device), ChoiceParts.of([row]))[0].tolist()
        return self.count(int(place) if ids is None else int(ids[int(place)]), peak)

    def _number(self, ahead: int) -> float:
        while len(self._numbers) <= ahead:
            self._numbers.append(torch.rand((), generator=self._generator, dtype=torch.float64).item())
        return self._numbers[ahead]


def survivors(logits_V: torch.Tensor, sampling: Sampling) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the ids that may be drawn and their scores in float32: at least one, for any temperature > 0.

    The largest logit must be finite.

    Raises:
        RequestError: the temperature is 0, which draws nothing.
    """
    if sampling.temperature == 0:
        raise RequestError("temperature 0 takes the most probable token; nothing is drawn")
    row = _row_choice(sampling, 0.0)
    ids = _kept_by_top_k(logits_V, row)
    few = logits_V if ids is None else logits_V[ids]
    places_BN, scores_BN = candidates(few[None], _choices_B5(row, few.device), ChoiceParts.of([row]))
    drawable = scores_BN > -torch.inf
    places = places_BN[drawable]
    return places if ids is None else ids[places], scores_BN[drawable]


def _row_choice(sampling: Sampling, number: float) -> RowChoice:
    return RowChoice(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        number=number,
    )


def _choices_B5(row: RowChoice, device: torch.device) -> torch.Tensor:
    return torch.tensor(choice_numbers([row]), dtype=torch.float64, device=device)


def _kept_by_top_k(logits_V: torch.Tensor, row: RowChoice) -> torch.Tensor | None:
    """The ids that top-k keeps, or None for all: on a CPU it is they alone that are worth sorting."""
    if row.temperature == 0 or not 0 < row.top_k < len(logits_V):
        return None
    scores = scaled(logits_V, torch.tensor(row.temperature, dtype=torch.float64, device=logits_V.device))
    ids = (scores >= scores.topk(row.top_k).values[-1]).nonzero()[:, 0]
    return ids if len(ids) else None  # none where a logit is no number, which the choice itself reports


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return _is_integer(value) or isinstance(value, float)
