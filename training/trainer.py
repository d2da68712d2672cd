"""The training loop: one family's decoder, random windows of one stream, its one-shot forward."""

from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter

import torch
import torch.nn.functional as F
from dropout import drop_inputs
from optimiser import Optimiser, Rates
from run_state import Budget, RunState, Spent
from target import Target
from windows import TokenStream

from fuel_core.plans import Numerics
from fuel_core.weights.initialise import initialise


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How to train, apart from what and for how long.

    Attributes:
        rates: peak learning rates and weight decay.
        step_tokens: of one step, over all its windows.
        window_tokens: of a window. Short windows are cheap, and teach most of a language.
        long_window_tokens, long_share: of the windows in the last share of the run, which teaches the
            positions that short windows never reach.
        dropout: the share of every linear layer's inputs that a step leaves out.
        activations: their dtype; weights are float32 while they move.
        compiled: run forward and backward through torch.compile, which needs a C++ compiler.
        seed: of the first weights, the windows and dropout.
    """

    rates: Rates
    step_tokens: int
    window_tokens: int
    long_window_tokens: int
    long_share: float
    dropout: float
    activations: torch.dtype
    compiled: bool
    seed: int

    def windows(self, progress: float) -> tuple[int, int]:
        """How many windows a step draws at ``progress`` in 0..1, and of how many tokens."""
        tokens = self.window_tokens if progress < 1 - self.long_share else self.long_window_tokens
        return max(1, self.step_tokens // tokens), tokens


def start(target: Target, recipe: Recipe) -> RunState:
    """A fresh model with its optimiser, before the first step.

    Raises:
        ConfigError: the family does not understand the config.
    """
    family = target.family
    config, _ = family.config.read(target.config, source=str(target.source))
    plan = family.plan(config, family.options())
    numerics = Numerics(weights=torch.float32, activations=recipe.activations, cache=torch.float32)
    with torch.device("meta"):
        decoder = family.build(config, plan.with_numerics(numerics))
    generator = torch.manual_seed(recipe.seed)  # the default one: dropout draws from it too
    initialise(decoder, generator)
    if recipe.dropout:
        drop_inputs(decoder, recipe.dropout)
    optimiser = Optimiser(decoder, recipe.rates)
    return RunState(decoder=decoder, optimiser=optimiser, generator=generator, spent=Spent())


def steps(state: RunState, stream: TokenStream, recipe: Recipe, budget: Budget) -> Iterator[float]:
    """Train until the budget is spent, yielding the loss in nats per token of each step.

    The clock stands while the caller holds a yielded loss.
    """
    forward = torch.compile(state.decoder, dynamic=False) if recipe.compiled else state.decoder
    while (progress := budget.progress(state.spent)) < 1:
        begun = perf_counter()
        read_BT, next_BT = stream.draw(*recipe.windows(progress), state.generator)
        loss = F.cross_entropy(forward(read_BT).flatten(0, 1), next_BT.flatten())
        loss.backward()
        state.optimiser.step(progress)
        state.spent.steps += 1
        state.spent.tokens += next_BT.numel()
        state.spent.seconds += perf_counter() - begun
        yield loss.item()
