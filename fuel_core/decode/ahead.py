"""Running ahead: the step after this one is launched before the host knows the token that it feeds.

A planned step is followed by the choice of its tokens, which go straight into the inputs of the next
one. So the next step can start while the host still reads the tokens of this one, looks whether they end
a text, and asks for the next. If it asks for something else, what was launched is discarded: it
wrote one place beyond what the caches count, which whatever comes next writes again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fuel_core.blocks.decoder import Decoder
from fuel_core.cache import Cache
from fuel_core.decode.backends import HeldStep
from fuel_core.decode.buckets import attended_tokens
from fuel_core.decode.buffers import StaticInputs, rebind
from fuel_core.decode.counters import Counters, PhaseTimes
from fuel_core.decode.token_choice import CHOICE_NUMBERS, ChoiceParts, RowChoice, choice_numbers, choose
from fuel_core.decode.transfer import Readback, upload


@dataclass(frozen=True)
class StepRequest:
    """A step whose tokens the device chooses. Two that are equal have one answer.

    Attributes:
        model: whose step it is.
        rows: of each active row its place, cache, length, version, regime and the token that it appends.
        choices: of each row.
    """

    model: Decoder
    rows: tuple[tuple[object, ...], ...]
    choices: tuple[RowChoice, ...]

    @classmethod
    def of(
        cls,
        model: Decoder,
        token_ids: Sequence[Sequence[int]],
        caches: Sequence[Cache | None],
        choices: Sequence[RowChoice],
        *,
        calls: int = 0,
    ) -> "StepRequest":
        """The request as it stands, or once the caches have advanced by so many calls of one token."""
        return cls(
            model,
            tuple(
                (place, id(cache), cache.length + calls, cache.version + calls, cache.regime, ids[0])
                for place, (cache, ids) in enumerate(zip(caches, token_ids, strict=True))
                if cache is not None
            ),
            tuple(choices),
        )


@dataclass(frozen=True)
class Flight:
    """A step that was launched ahead, and the request that it answers."""

    request: StepRequest
    caches: tuple[Cache | None, ...]  # held, so that no other cache has one of their identities
    chosen: Readback


class Ahead:
    """Chooses tokens behind a held step, and runs one step ahead."""

    def __init__(self, step: HeldStep, inputs: StaticInputs, counters: Counters, phases: PhaseTimes) -> None:
        device, batch = inputs.rows_B.device, inputs.rows_B.shape[0]
        self._step, self._inputs, self._counters, self._phases = step, inputs, counters, phases
        self._choices_B5 = torch.zeros((batch, CHOICE_NUMBERS), dtype=torch.float64, device=device)
        self._growth_B1 = torch.zeros((batch, 1), dtype=torch.int64, device=device)
        self._launches: dict[ChoiceParts, Callable[[int], Tensor]] = {}
        self._flight: Flight | None = None

    def discard(self) -> None:
        """Give up what is under way: somebody overwrites the inputs."""
        if self._flight is not None:
            self._counters.discards += 1
            self._flight = None

    def run(
        self,
        decoder: Decoder,
        token_ids: Sequence[Sequence[int]],
        caches: Sequence[Cache | None],
        choices: Sequence[RowChoice],
        after: Sequence[RowChoice] | None,
    ) -> Tensor:
        """Append a token to each cache and choose the next ones: ``[B, 2]`` on the host, see ``choose``.

        The step is launched now, unless it is under way; then, with ``after``, the one that feeds what
        is being chosen; only then the host waits.
        """
        chosen = self._take(StepRequest.of(decoder, token_ids, caches, choices))
        parts, following, attended = ChoiceParts.of(choices), None, attended_tokens(caches)
        if chosen is None:
            self._prepare(parts)
            with self._phases.measure("rebind"):
                rebind(self._inputs, token_ids, caches)
                growth = [[0 if cache is None else 1] for cache in caches]
                upload(self._growth_B1, torch.tensor(growth, device="cpu"))
            chosen = self._launch(choices, attended)
        if after is not None and ChoiceParts.of(after) == parts and _may_go_on(decoder, caches):
            following = after, self._launch(after, attended + 1)
        with self._phases.measure("sample"):
            chosen_B2 = chosen.wait()
        if following is not None:
            tokens = chosen_B2[:, :1].to(torch.int64).tolist()
            request = StepRequest.of(decoder, tokens, caches, following[0], calls=1)
            self._flight = Flight(request, tuple(caches), following[1])
        return chosen_B2

    def _take(self, request: StepRequest) -> Readback | None:
        """What is under way, if it answers this request."""
        flight = self._flight
        if flight is None or flight.request != request:
            self.discard()
            return None
        self._flight = None
        return flight.chosen

    def _prepare(self, parts: ChoiceParts) -> None:
        """Let the step be followed by these parts of the choice; the inputs are anything then."""
        if parts in self._launches:
            return
        step, inputs, choices_B5, growth_B1 = self._step, self._inputs, self._choices_B5, self._growth_B1

        def follow(logits_BV: Tensor) -> Tensor:
            chosen_B2 = choose(logits_BV, choices_B5, parts)
            inputs.token_ids_BT.copy_(chosen_B2[:, :1])
            inputs.positions_BT.add_(growth_B1)  # an idle row writes to its one place again and again
            return chosen_B2

        with self._phases.measure("plan"), self._counters.counting_captures(step):
            self._launches[parts] = step.followed_by(follow)

    def _launch(self, choices: Sequence[RowChoice], attended: int) -> Readback:
        """Run the step on what its inputs hold; afterwards they hold what the next one appends."""
        with self._phases.measure("replay"), self._counters.counting_captures(self._step):
            upload(self._choices_B5, torch.tensor(choice_numbers(choices), dtype=torch.float64, device="cpu"))
            chosen = Readback(self._launches[ChoiceParts.of(choices)](attended))
        self._counters.replays += 1
        return chosen


def _may_go_on(decoder: Decoder, caches: Sequence[Cache | None]) -> bool:
    """Whether each row can take a token beyond this call's without the host: there is room, and its keys
    stay rotated as they are."""
    plan = decoder.plan
    return all(
        cache.length + 2 <= min(cache.capacity, plan.position_limit)
        and plan.rope.regime(cache.length + 2) == cache.regime
        for cache in caches
        if cache is not None
    )
