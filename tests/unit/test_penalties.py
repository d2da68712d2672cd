"""Penalties and biases: what they count, where they apply, what is off."""

import pytest
import torch

from fuel_core.errors import RequestError
from fuel_core.generate.penalties import penalise
from fuel_core.generate.sampling import Sampling, survivors

LOGITS = torch.zeros(12).index_copy(0, torch.tensor([5, 7, 9]), torch.tensor([2.0, -2.0, 1.0]))
PROMPT, GENERATED = [5, 5, 7], [9, 9, 9]


def changed(sampling: Sampling) -> dict[int, float]:
    out = penalise(LOGITS, sampling, PROMPT, GENERATED)
    return {token: round(float(out[token]), 6) for token in range(12) if out[token] != LOGITS[token]}


def test_repetition_counts_prompt_and_text_once() -> None:
    """Engines applied it once an occurrence, or to generated tokens alone."""
    assert changed(Sampling(repetition_penalty=1.25)) == {5: 1.6, 7: -2.5, 9: 0.8}


def test_presence_and_frequency_count_the_text_alone() -> None:
    assert changed(Sampling(presence_penalty=0.2, frequency_penalty=0.5)) == {9: -0.7}


def test_bias_is_added() -> None:
    assert changed(Sampling(logit_bias={3: -100.0, 5: 1.5})) == {3: -100.0, 5: 3.5}


def test_neutral_settings_return_the_input_itself() -> None:
    assert penalise(LOGITS, Sampling(), PROMPT, GENERATED) is LOGITS


def test_the_input_is_left_alone() -> None:
    before = LOGITS.clone()
    changed(Sampling(repetition_penalty=2.0, presence_penalty=1.0, logit_bias={1: 4.0}))
    assert torch.equal(LOGITS, before)


def test_equals_transformers_on_random_rows() -> None:
    from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

    draw = torch.Generator().manual_seed(0)
    for _ in range(200):
        logits = torch.randn(50, generator=draw)
        ids = torch.randint(0, 50, (20,), generator=draw)
        wanted = RepetitionPenaltyLogitsProcessor(1.3)(ids[None], logits[None].clone())[0]
        found = penalise(logits, Sampling(repetition_penalty=1.3), ids[:8].tolist(), ids[8:].tolist())
        assert torch.equal(found, wanted)


def test_min_p_keeps_what_transformers_keeps() -> None:
    from transformers.generation.logits_process import MinPLogitsWarper

    draw = torch.Generator().manual_seed(1)
    for _ in range(1000):
        logits = 3 * torch.randn(40, generator=draw)
        wanted = MinPLogitsWarper(0.07)(torch.zeros(1, 1), logits[None].clone())[0].isfinite()
        ids, _ = survivors(logits, Sampling(temperature=1.0, min_p=0.07))
        assert sorted(ids.tolist()) == wanted.nonzero().flatten().tolist()


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"min_p": -0.1}, "min_p is -0.1"),
        ({"min_p": 1.5}, "min_p is 1.5"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0"),
        ({"presence_penalty": float("nan")}, "presence_penalty is nan"),
        ({"frequency_penalty": "x"}, "frequency_penalty is 'x'"),
        ({"logit_bias": {-1: 2.0}}, "logit_bias gives -1"),
        ({"logit_bias": {1: float("nan")}}, "logit_bias gives 1 nan"),
    ],
)
def test_values_out_of_range_are_refused(settings: dict[str, object], named: str) -> None:
    with pytest.raises(RequestError, match=named):
        Sampling(**settings)  # type: ignore[arg-type]
