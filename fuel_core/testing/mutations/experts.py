"""Faults of routing and of experts."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from torch import Tensor

from fuel_core.blocks.experts import Experts, MoE
from fuel_core.blocks.router import Router
from fuel_core.plans.model_plan import ModelPlan
from fuel_core.plans.moe_plan import MoEPlan, RouterPlan
from fuel_core.testing.mutations.mutation import CoreMutation, Patch


def _routers(plan: ModelPlan) -> list[RouterPlan]:
    parts = [layer.feed_forward for layer in plan.layers]
    return [p.router for p in parts if isinstance(p, MoEPlan) and isinstance(p.router, RouterPlan)]


def _routes(wanted: Callable[[RouterPlan], bool]) -> Callable[[ModelPlan], bool]:
    return lambda plan: any(wanted(router) for router in _routers(plan))


def _has_experts(plan: ModelPlan) -> bool:
    return any(isinstance(layer.feed_forward, MoEPlan) for layer in plan.layers)


def _shares(plan: ModelPlan) -> bool:
    return any(isinstance(p.feed_forward, MoEPlan) and p.feed_forward.shared for p in plan.layers)


def _reroute(change: Callable[[RouterPlan], RouterPlan]) -> Patch:
    """Routers that follow another recipe than their plan's."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        right = Router.forward

        def forward(self: Router, x: Tensor) -> tuple[Tensor, Tensor]:
            stated, self.plan = self.plan, change(self.plan)
            try:
                return right(self, x)
            finally:
                self.plan = stated

        monkeypatch.setattr(Router, "forward", forward)

    return patch


def _no_limit(plan: RouterPlan) -> RouterPlan:
    return replace(plan, groups_chosen=plan.groups)


def _let_the_bias_weigh(patch: pytest.MonkeyPatch) -> None:
    right = Router.forward

    def forward(self: Router, x: Tensor) -> tuple[Tensor, Tensor]:
        ids, weights = right(self, x)
        bias = self.e_score_correction_bias
        return ids, weights if bias is None else weights + bias[ids]

    patch.setattr(Router, "forward", forward)


def _choose_without_the_bias(patch: pytest.MonkeyPatch) -> None:
    right = Router.forward

    def forward(self: Router, x: Tensor) -> tuple[Tensor, Tensor]:
        stated, self.e_score_correction_bias = self.e_score_correction_bias, None
        try:
            return right(self, x)
        finally:
            self.e_score_correction_bias = stated

    patch.setattr(Router, "forward", forward)


def _silence_shared_experts(patch: pytest.MonkeyPatch) -> None:
    right = MoE.forward

    def forward(self: MoE, x: Tensor) -> Tensor:
        stated, self.shared = self.shared, None
        try:
            return right(self, x)
        finally:
            self.shared = stated

    patch.setattr(MoE, "forward", forward)


def _ask_the_next_expert(patch: pytest.MonkeyPatch) -> None:
    right = Experts.forward

    def forward(self: Experts, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        return right(self, x, (ids + 1) % self.gate_up.weight.shape[0], weights)

    patch.setattr(Experts, "forward", forward)


EXPERTS_MUTATIONS = (
    CoreMutation("shared experts silent", _silence_shared_experts, _shares),
    CoreMutation("the next expert asked", _ask_the_next_expert, _has_experts),
    CoreMutation(
        "routed weights unscaled",
        _reroute(lambda router: replace(router, scale=1.0)),
        _routes(lambda router: router.scale != 1),
    ),
    CoreMutation(
        "routed weights normalised otherwise",
        _reroute(lambda router: replace(router, normalise=not router.normalise)),
        _routes(lambda router: True),
    ),
    CoreMutation(
        "experts of passed-over groups chosen", _reroute(_no_limit), _routes(lambda router: router.limited)
    ),
    CoreMutation(
        "the correction bias weighs", _let_the_bias_weigh, _routes(lambda router: router.correction_bias)
    ),
    CoreMutation(
        "the correction bias does not choose",
        _choose_without_the_bias,
        _routes(lambda router: router.correction_bias),
    ),
)
