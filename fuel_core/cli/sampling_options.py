"""What the command line says of sampling: options that were given go before the checkpoint's own."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from fuel_core.cli.terminal import print_notice
from fuel_core.generate.sampling import Sampling
from fuel_core.model import LanguageModel

_OF_DRAWING = ("top_k", "top_p", "min_p", "seed")
"""Without effect where the most probable token is taken."""


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """Fields of :class:`Sampling`; None for what was not given.

    Raises:
        RequestError: a value is out of its range.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        Sampling(**self.given)  # what is out of its range is refused before a model is loaded

    @property
    def given(self) -> dict[str, Any]:
        """What was given, by its name."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def of(self, model: LanguageModel, **unasked: float) -> Sampling:
        """What was given, and for the rest what the checkpoint asks for; says where that samples, and what
        has no effect.

        Args:
            unasked: where neither says how to sample.
        """
        given = self.given
        sampling = model.sampling(**given)
        if not sampling.temperature and "temperature" not in given:
            sampling = replace(sampling, **{**unasked, **given})
        if sampling.temperature and "temperature" not in given:
            text = f"sampling with {_text(sampling)}; --temperature 0 takes the most probable tokens"
            print_notice("note", text, "cyan")
        idle = [f"--{name.replace('_', '-')}" for name in _OF_DRAWING if name in given]
        if idle and not sampling.temperature:
            print_notice(
                "note",
                f"{', '.join(idle)} changes nothing at temperature 0, which takes the most probable token",
                "yellow",
            )
        return sampling


def _text(sampling: Sampling) -> str:
    """What differs from taking the most probable token."""
    greedy = asdict(Sampling())
    return ", ".join(f"{name} {value}" for name, value in asdict(sampling).items() if value != greedy[name])
