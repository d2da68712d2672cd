"""What a training run has done so far, kept on disk so that it can go on after a cut."""

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from optimiser import Optimiser

from fuel_core.blocks.decoder import Decoder
from fuel_core.errors import RequestError


@dataclass(frozen=True, kw_only=True)
class Budget:
    """When a run ends: after so many tokens (repeatable), or so many minutes at work; one of them.

    Raises:
        RequestError: both are given, or neither.
    """

    tokens: int | None
    minutes: float | None

    def __post_init__(self) -> None:
        if (self.tokens is None) == (self.minutes is None):
            raise RequestError(
                f"the length of the run is either --tokens or --minutes; got {self.tokens} and {self.minutes}"
            )

    def progress(self, spent: "Spent") -> float:
        """The share of the run that is done; 1 or more ends it."""
        if self.tokens is not None:
            return spent.tokens / self.tokens
        assert self.minutes is not None
        return spent.seconds / (60 * self.minutes)


@dataclass(kw_only=True)
class Spent:
    """What a run has used up, over all its parts."""

    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0


@dataclass(kw_only=True)
class RunState:
    """All that moves in a run."""

    decoder: Decoder
    optimiser: Optimiser
    generator: torch.Generator
    spent: Spent

    @property
    def parameters(self) -> int:
        """Their number, shared ones once."""
        return sum(parameter.numel() for parameter in self.decoder.parameters())

    def save(self, path: Path) -> None:
        """Write beside ``path`` and move into place, so that a cut never leaves half a file."""
        content = {
            "decoder": self.decoder.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "generator": self.generator.get_state(),
            "spent": asdict(self.spent),
        }
        partial = path.with_name(path.name + ".partial")
        torch.save(content, partial)
        os.replace(partial, path)

    def restore(self, path: Path) -> None:
        """Go back to where :meth:`save` was called.

        Raises:
            RequestError: the file is of another model.
        """
        content: dict[str, Any] = torch.load(path, weights_only=True)
        try:
            self.decoder.load_state_dict(content["decoder"])
        except RuntimeError as error:
            raise RequestError(
                f"{path} is the state of another model; choose another --output: {error}"
            ) from error
        self.optimiser.load_state_dict(content["optimiser"])
        self.generator.set_state(content["generator"])
        self.spent = Spent(**content["spent"])
