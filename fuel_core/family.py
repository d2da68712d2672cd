"""What a plugin states about one model family: everything that differs, and nothing else."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fuel_core.blocks.decoder import Decoder
from fuel_core.config.family_config import FamilyConfig
from fuel_core.plans.model_plan import ModelPlan
from fuel_core.weights.names import EXPERT_NAMES as EXPERT_NAMES
from fuel_core.weights.names import LLAMA_NAMES as LLAMA_NAMES
from fuel_core.weights.names import WeightNames as WeightNames


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """A fault of one family that its tests must see.

    Attributes:
        name: what is broken, for the test's id.
        config: changes a config.json's content before it is read; None leaves it.
        decoder: breaks the loaded model in place; None leaves it.
    """

    name: str
    config: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    decoder: Callable[[Decoder], None] | None = None


@dataclass(frozen=True, kw_only=True)
class Family:
    """A model family. Nothing has a default on purpose: a default mask or RoPE plan would be silently
    right for simple families and silently wrong for the next one.

    Attributes:
        name: as in the family's card.
        config: the FamilyConfig subclass that reads its config.json.
        options: a frozen dataclass, constructible without arguments: what a user may choose at load.
        plan: (config, options) -> ModelPlan.
        build: (config, plan) -> Decoder; called on the meta device, allocates nothing.
        weights: block -> tensor names of the published checkpoints.
        tiny: name -> smallest config.json contents, which together take every branch.
        mutations: faults that the family's tests must see.
    """

    name: str
    config: type[FamilyConfig]
    options: type[Any]
    plan: Callable[[Any, Any], ModelPlan]
    build: Callable[[Any, ModelPlan], Decoder]
    weights: WeightNames
    tiny: Mapping[str, Mapping[str, Any]]
    mutations: tuple[Mutation, ...]
