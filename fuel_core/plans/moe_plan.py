"""How a layer of experts chooses and weighs them."""

from dataclasses import dataclass
from typing import Literal, Protocol

from fuel_core.errors import PlanError
from fuel_core.plans.model_plan import ActivationName, GatedMLPPlan

Scoring = Literal["softmax", "sigmoid"]
"""How logits become the scores of experts."""


class Routing(Protocol):
    """What every router's plan states: :class:`RouterPlan`, or a family's own frozen value."""

    @property
    def experts(self) -> int: ...

    @property
    def chosen(self) -> int: ...


@dataclass(frozen=True, kw_only=True)
class RouterPlan:
    """Score all experts, choose the best, weigh them by their scores.

    Attributes:
        experts, chosen: E, and how many of them a token goes through.
        scoring: of the logits over all experts, whichever are chosen.
        groups, groups_chosen: experts are chosen from the best groups of neighbours alone; no limit when
            all groups are.
        group_score: a group is as good as its best expert, or as its best two together.
        correction_bias: a stored bias is added to the scores that choose, never to those that weigh.
        normalise: the weights are divided by their sum.
        scale: factor on the weights, after that. DeepSeek-V3 has both; DeepSeek-V2 scales only what it does
            not normalise, which its family states as a scale of 1.

    A single chosen expert that is normalised has weight 1 (times the scale), as in DeepSeek's native code
    for V3; its code for V2 does not normalise one expert, and its family must say so.

    Raises:
        PlanError: more is to be chosen than there is.
    """

    experts: int
    chosen: int
    scoring: Scoring
    normalise: bool
    groups: int = 1
    groups_chosen: int = 1
    group_score: Literal["max", "top2"] | None = None
    correction_bias: bool = False
    scale: float = 1.0

    def __post_init__(self) -> None:
        if not 1 <= self.chosen <= self.experts:
            raise PlanError(f"a router cannot choose {self.chosen} of {self.experts} expert(s)")
        if self.groups < 1 or self.experts % self.groups:
            raise PlanError(f"{self.experts} experts do not divide into {self.groups} group(s)")
        if not 1 <= self.groups_chosen <= self.groups:
            raise PlanError(
                f"a router cannot choose {self.groups_chosen} of {self.groups} group(s) of experts"
            )
        size = self.experts // self.groups
        if self.chosen > self.groups_chosen * size:
            raise PlanError(
                f"a router chooses {self.chosen} experts, and {self.groups_chosen} group(s) of {size} hold "
                f"only {self.groups_chosen * size}"
            )
        if self.limited and self.group_score is None:
            raise PlanError(f"{self.groups_chosen} of {self.groups} groups are chosen by no score")
        if self.group_score == "top2" and size < 2:
            raise PlanError(
                f"groups are scored by their best two experts, and each of {self.groups} has {size}"
            )

    @property
    def limited(self) -> bool:
        """Whether some groups are passed over."""
        return self.groups_chosen < self.groups

    def __str__(self) -> str:
        recipe = [f"{self.chosen} of {self.experts}", self.scoring]
        if self.correction_bias:
            recipe.append("correction bias")
        if self.limited:
            recipe.append(f"groups {self.groups_chosen} of {self.groups} by {self.group_score}")
        if self.normalise:
            recipe.append("normalised")
        if self.scale != 1:
            recipe.append(f"scale {self.scale:g}")
        return ", ".join(recipe)


@dataclass(frozen=True, kw_only=True)
class MoEPlan:
    """A feed-forward block of routed experts, beside shared ones that every token goes through.

    Attributes:
        router: the core's recipe, or a family's own.
        expert_width: hidden units of each routed expert.
        activation: of the routed experts.
        shared: all shared experts as one block; None builds none. The router's scale never touches it.
        shared_gate: the shared block's output is multiplied by the sigmoid of a projection of the input.

    Raises:
        PlanError: a gate without shared experts.
    """

    router: Routing
    expert_width: int
    activation: ActivationName
    shared: GatedMLPPlan | None
    shared_gate: bool

    def __post_init__(self) -> None:
        if self.shared_gate and self.shared is None:
            raise PlanError("shared_gate is set and the layer has no shared experts")

    def __str__(self) -> str:
        shared = ""
        if self.shared is not None:
            shared = f", {'gated ' if self.shared_gate else ''}shared {self.shared.width}"
        return f"moe {self.router}, experts {self.expert_width} {self.activation}{shared}"
