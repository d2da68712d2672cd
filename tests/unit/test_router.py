"""Routers against numbers worked out by hand and against the published rules."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fuel_core.blocks import Router
from fuel_core.errors import PlanError
from fuel_core.plans import RouterPlan

SOFTMAX = RouterPlan(experts=4, chosen=2, scoring="softmax", normalise=False)
SIGMOID = RouterPlan(experts=4, chosen=2, scoring="sigmoid", normalise=True, correction_bias=True)
LOGITS = [2.0, 1.0, 0.0, -1.0]


def routed(
    plan: RouterPlan, logits: Tensor, bias: Tensor | None = None, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    """Route tokens whose logits are the given ones, and order each token's experts by number."""
    router = Router(logits.shape[-1], plan).to(dtype)
    router.requires_grad_(False)
    router.weight.copy_(torch.eye(logits.shape[-1]))
    if router.e_score_correction_bias is not None:
        assert bias is not None
        router.e_score_correction_bias.copy_(bias)
    ids, weights = router(logits.to(dtype))
    ids, order = ids.sort(-1)
    return ids, weights.gather(-1, order)


def one(plan: RouterPlan, logits: list[float], bias: list[float] | None = None) -> tuple[list[int], Tensor]:
    stored = None if bias is None else torch.tensor(bias)
    ids, weights = routed(plan, torch.tensor([logits]), stored, torch.float32)
    return ids[0].tolist(), weights[0]


def assert_weights(found: Tensor, expected: list[float]) -> None:
    torch.testing.assert_close(found, torch.tensor(expected), atol=2e-6, rtol=0)


@pytest.mark.parametrize(
    ("changes", "weights"),
    [
        ({}, [0.643914, 0.236883]),
        ({"normalise": True}, [0.731059, 0.268941]),
        ({"scale": 16.0}, [10.302628, 3.790125]),
        ({"normalise": True, "scale": 2.5}, [2.5 * 0.731059, 2.5 * 0.268941]),
    ],
)
def test_softmax_is_over_all_experts(changes: dict[str, Any], weights: list[float]) -> None:
    """A softmax over the chosen ones alone gives the normalised weights in both cases."""
    ids, found = one(replace(SOFTMAX, **changes), LOGITS)
    assert ids == [0, 1]
    assert_weights(found, weights)


def test_one_expert_normalised_has_weight_one() -> None:
    ids, found = one(replace(SOFTMAX, chosen=1, normalise=True), LOGITS)
    assert ids == [0]
    assert_weights(found, [1.0])


def test_the_correction_bias_chooses_and_does_not_weigh() -> None:
    """Two faults that were published: biased weights (1.59655, 0.90345), or a choice without the bias."""
    ids, found = one(replace(SIGMOID, scale=2.5), [0.0, 1.0, -1.0, 0.5], [0.6, -0.5, 0.0, 0.0])
    assert ids == [0, 3]
    assert_weights(found, [1.11362609, 1.38637391])


def test_tiny_scores_survive_a_large_bias() -> None:
    """Taken as (score + bias) - bias in float32, both scores were zero and their weights NaN."""
    ids, found = one(SIGMOID, [-18.0, -17.0, 0.0, 0.0], [12.0, 12.0, 0.0, 0.0])
    assert ids == [0, 1]
    assert_weights(found, [0.268941, 0.731059])


def logits_and_bias(tokens: int = 50, experts: int = 12) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(tokens, experts, generator=draw, dtype=torch.float64)
    bias = torch.randn(experts, generator=draw, dtype=torch.float64)
    return 2 * logits, bias - 3.0


@pytest.mark.parametrize("groups_chosen", [2, 3, 4])
def test_groups_by_their_best_expert(groups_chosen: int) -> None:
    """``group_limited_greedy``, one token at a time: masked scores are 0, as DeepSeek-V2 publishes it."""
    plan = RouterPlan(
        experts=12,
        chosen=4,
        scoring="softmax",
        normalise=False,
        groups=4,
        groups_chosen=groups_chosen,
        group_score="max",
        scale=16.0,
    )
    logits, _ = logits_and_bias()
    ids, weights = routed(plan, logits)
    for token, scores in enumerate(logits.softmax(-1)):
        best = {int(group) for group in scores.view(4, 3).amax(-1).topk(groups_chosen).indices}
        masked = torch.stack([score * (index // 3 in best) for index, score in enumerate(scores)])
        chosen = sorted(masked.topk(4).indices.tolist())
        assert ids[token].tolist() == chosen
        torch.testing.assert_close(weights[token], 16 * scores[chosen], atol=1e-12, rtol=0)
    unlimited = logits.topk(4).indices.sort(-1).values
    assert torch.equal(ids, unlimited) == (groups_chosen == 4), "the limit must matter for some token"


@pytest.mark.parametrize("groups_chosen", [1, 2])
def test_groups_by_their_best_two_experts(groups_chosen: int) -> None:
    """``noaux_tc``, one token at a time, with biases that are all negative: a mask of 0 instead of -inf
    chose experts of the groups that were passed over."""
    plan = RouterPlan(
        experts=12,
        chosen=4,
        scoring="sigmoid",
        normalise=True,
        groups=3,
        groups_chosen=groups_chosen,
        group_score="top2",
        correction_bias=True,
        scale=2.5,
    )
    logits, bias = logits_and_bias()
    assert bias.max() < -1, "every biased score must be below 0"
    ids, weights = routed(plan, logits, bias)
    by_best_alone = 0
    for token, scores in enumerate(logits.sigmoid()):
        biased = (scores + bias).view(3, 4)
        best = biased.sort(-1).values[:, -2:].sum(-1).topk(groups_chosen).indices.tolist()
        by_best_alone += biased.amax(-1).topk(groups_chosen).indices.tolist() != best
        allowed = [4 * group + member for group in best for member in range(4)]
        chosen = sorted(sorted(allowed, key=lambda index: -(scores + bias)[index].item())[:4])
        assert ids[token].tolist() == chosen
        right = 2.5 * scores[chosen] / scores[chosen].sum()
        torch.testing.assert_close(weights[token], right, atol=1e-12, rtol=0)
    assert by_best_alone, "the sum of two must matter for some token"


def test_half_precision_activations_are_routed_in_float32() -> None:
    """Logits 10 and 10.01 are one number in bfloat16; so are the scores of a softmax near 1."""
    router = Router(2, RouterPlan(experts=2, chosen=1, scoring="softmax", normalise=False))
    router.requires_grad_(False)
    router.weight.copy_(torch.tensor([[10.0, 0.0], [10.0, 0.01]]))
    ids, weights = router(torch.ones(1, 2, dtype=torch.bfloat16))
    assert ids.tolist() == [[1]]
    assert ids.dtype is torch.int64
    assert weights.dtype is torch.float32
    assert_weights(weights[0], [0.5025])
    assert all(rule.dtype(torch.bfloat16) is torch.float32 for rule in router.weight_rules.values())


@pytest.mark.parametrize(
    ("changes", "numbers"),
    [
        ({"chosen": 5}, ["5", "4"]),
        ({"chosen": 0}, ["0", "4"]),
        ({"groups": 3, "groups_chosen": 3}, ["4", "3"]),
        ({"groups": 0}, ["4", "0"]),
        ({"groups": 2, "groups_chosen": 3, "group_score": "max"}, ["3", "2"]),
        ({"groups": 2, "groups_chosen": 0, "group_score": "max"}, ["0", "2"]),
        ({"chosen": 3, "groups": 2, "groups_chosen": 1, "group_score": "max"}, ["3", "1", "2"]),
        ({"groups": 2, "groups_chosen": 1}, ["1", "2"]),
        ({"chosen": 1, "groups": 4, "groups_chosen": 2, "group_score": "top2"}, ["4", "1"]),
    ],
)
def test_a_contradiction_is_refused_with_its_numbers(changes: dict[str, Any], numbers: list[str]) -> None:
    with pytest.raises(PlanError) as refusal:
        replace(SOFTMAX, **changes)
    assert all(number in str(refusal.value) for number in numbers)


def test_the_recipe_is_readable() -> None:
    assert str(SOFTMAX) == "2 of 4, softmax"
    v3 = RouterPlan(
        experts=256,
        chosen=8,
        scoring="sigmoid",
        normalise=True,
        groups=8,
        groups_chosen=4,
        group_score="top2",
        correction_bias=True,
        scale=2.5,
    )
    expected = "8 of 256, sigmoid, correction bias, groups 4 of 8 by top2, normalised, scale 2.5"
    assert str(v3) == expected
