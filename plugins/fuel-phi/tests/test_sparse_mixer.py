"""SparseMixer's choice and weights against the published rule, one token at a time."""

import math

import pytest
import torch

from fuel_core.errors import PlanError
from fuel_phi.sparse_mixer import SparseMixer, SparseMixerPlan


def route(logits: list[float], eps: float) -> tuple[list[int], list[float]]:
    """The experts and weights of one token whose logits are these: its activations are the logits."""
    router = SparseMixer(len(logits), SparseMixerPlan(experts=len(logits), eps=eps))
    with torch.no_grad():
        router.weight.copy_(torch.eye(len(logits)))
        router = router.double()
        ids, weights = router(torch.tensor([logits], dtype=torch.float64))
    return ids[0].tolist(), weights[0].tolist()


def published(logits: list[float], eps: float) -> tuple[list[int], list[float]]:
    """The rule in plain Python: near is a gap of at most 2 eps of the larger of |logit| and the best."""
    left = dict(enumerate(logits))
    ids, weights = [], []
    for _ in range(2):
        best = max(left, key=lambda expert: left[expert])
        top = left[best]
        near = [s for s in left.values() if (top - s) / (max(abs(s), top) or 1.0) <= 2 * eps]
        ids.append(best)
        weights.append(1 / sum(math.exp(s - top) for s in near))
        del left[best]
    return ids, weights


@pytest.mark.parametrize("eps", [0.0, 0.01, 0.1, 0.3, 0.6])
@pytest.mark.parametrize("shift", [3.0, 0.0, -4.0], ids=["positive", "mixed", "negative"])
def test_the_published_rule(eps: float, shift: float) -> None:
    """Negative logits too: there the larger of the two sizes is not the best one's."""
    drawn = torch.randn(20, 12, generator=torch.Generator().manual_seed(3), dtype=torch.float64) + shift
    for logits in drawn.tolist():
        wanted_ids, wanted_weights = published(logits, eps)
        ids, weights = route(logits, eps)
        assert ids == wanted_ids
        assert weights == pytest.approx(wanted_weights, rel=1e-12)


def test_far_experts_are_not_weighed() -> None:
    """At the published eps of 0.01 both weights are usually 1: they are no shares of one sum."""
    assert route([4.0, 3.0, 2.0, 1.0], 0.01) == ([0, 1], [1.0, 1.0])


def test_a_near_expert_takes_its_share() -> None:
    """4.0 and 3.95 are near (1.25 %), 3.9 is near to 3.95 and not, at 2.5 %, to 4.0; the runner-up is
    weighed with the first one gone."""
    ids, weights = route([3.9, 4.0, 1.0, 3.95], 0.01)
    assert ids == [1, 3]
    share = 1 / (1 + math.exp(-0.05))
    assert weights == pytest.approx([share, share], rel=1e-12)


def test_the_bound_itself_is_near() -> None:
    """A gap of exactly 2 eps; the sizes are powers of two, so that no rounding decides."""
    _, weights = route([4.0, 3.0, -8.0], 0.125)
    assert weights[0] == pytest.approx(1 / (1 + math.exp(-1.0)), rel=1e-12)
    _, weights = route([4.0, 2.9375, -8.0], 0.125)
    assert weights == [1.0, 1.0]


def test_logits_of_zero() -> None:
    """0 / 0 is no distance: experts that score nothing are near to each other, and nothing is NaN."""
    assert route([0.0, 0.0, 0.0, 0.0], 0.01) == ([0, 1], pytest.approx([1 / 4, 1 / 3]))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, inside its tracer
def test_a_step_is_one_graph() -> None:
    """A held step holds no choice of Python's: the router traces as one graph."""
    router = SparseMixer(12, SparseMixerPlan(experts=12, eps=0.3))
    torch.nn.init.eye_(router.weight)
    x = torch.randn(3, 12, generator=torch.Generator().manual_seed(4))
    torch._dynamo.reset()
    compiled = torch.compile(router, fullgraph=True, backend="eager")
    with torch.no_grad():
        ids, weights = compiled(x)
        wanted_ids, wanted_weights = router(x)
    assert torch.equal(ids, wanted_ids)
    assert torch.equal(weights, wanted_weights)


def test_too_few_experts() -> None:
    with pytest.raises(PlanError, match="two experts"):
        SparseMixerPlan(experts=1, eps=0.01)
