"""Sampling: the filters keep what transformers keeps, and each request has its own random numbers."""

import math
from collections import Counter

import pytest
import torch

from fuel_core.decode.token_choice import choose_now
from fuel_core.errors import GeometryError, RequestError
from fuel_core.generate.sampling import Sampler, Sampling, survivors

PROBABILITIES = torch.tensor([0.5, 0.3, 0.15, 0.05])
LOGITS = PROBABILITIES.log()


def kept(sampling: Sampling, logits_V: torch.Tensor = LOGITS) -> set[int]:
    return set(survivors(logits_V, sampling)[0].tolist())


def transformers_scores(logits_V: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    from transformers.generation.logits_process import (
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    scores = TemperatureLogitsWarper(float(sampling.temperature))(None, logits_V[None])
    if sampling.top_k:
        scores = TopKLogitsWarper(sampling.top_k)(None, scores)
    if sampling.top_p < 1:
        scores = TopPLogitsWarper(sampling.top_p)(None, scores)
    return scores[0]


@pytest.mark.parametrize(
    "unfit",
    [
        {"temperature": -1},
        {"temperature": -1e-9},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"temperature": "1"},
        {"temperature": True},
        {"temperature": None},
        {"top_k": -1},
        {"top_k": 1.0},
        {"top_k": True},
        {"top_p": 0},
        {"top_p": 0.0},
        {"top_p": -0.1},
        {"top_p": 1.5},
        {"top_p": 1.0000001},
        {"top_p": math.nan},
        {"top_p": None},
        {"seed": -1},
        {"seed": 2**64},
        {"seed": 1.0},
        {"seed": True},
        {"logit_bias": None},
        {"logit_bias": 3},
    ],
)
def test_values_out_of_range_are_refused_by_name(unfit: dict[str, object]) -> None:
    ((name, value),) = unfit.items()
    with pytest.raises(RequestError, match=f"^{name} is {value!r}; expected"):
        Sampling(**unfit)  # type: ignore[arg-type]


def test_biases_are_a_mapping() -> None:
    """A list ended in an AttributeError."""
    with pytest.raises(RequestError, match=r"^logit_bias is \[1\]; expected a mapping"):
        Sampling(logit_bias=[1])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(temperature=1.0), {0, 1, 2, 3}),
        (Sampling(temperature=1), {0, 1, 2, 3}),
        (Sampling(temperature=1.0, top_p=0.6), {0, 1}),
        (Sampling(temperature=1.0, top_p=1e-8), {0}),
        (Sampling(temperature=1.0, top_p=5e-324), {0}),
        (Sampling(temperature=1.0, top_k=1), {0}),
        (Sampling(temperature=1.0, top_k=3), {0, 1, 2}),
        (Sampling(temperature=1.0, top_k=4), {0, 1, 2, 3}),
        (Sampling(temperature=1.0, top_k=100), {0, 1, 2, 3}),
        (Sampling(temperature=1.0, top_k=1, top_p=0.8), {0}),
        # top-k first: the mass of the two kept tokens is 1, of which 0.6 is in the first
        (Sampling(temperature=1.0, top_k=2, top_p=0.6), {0}),
        # temperature first: it moves the mass that top-p counts (0.5 / 0.3 becomes 0.25 / 0.09)
        (Sampling(temperature=0.5, top_p=0.6), {0}),
        (Sampling(temperature=1e-6), {0, 1, 2, 3}),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_edges(sampling: Sampling, expected: set[int], dtype: torch.dtype) -> None:
    assert kept(sampling, LOGITS.to(dtype)) == expected
    assert survivors(LOGITS.to(dtype), sampling)[1].dtype == torch.float32
    assert Sampler(sampling)(LOGITS.to(dtype)) in expected


def test_top_k_keeps_ties_of_the_last() -> None:
    logits = torch.tensor([1.0, 3.0, 2.0, 2.0, 2.0])
    assert kept(Sampling(temperature=1.0, top_k=2), logits) == {1, 2, 3, 4}


def test_kept_sets_equal_transformers_on_1000_rows() -> None:
    generator = torch.Generator().manual_seed(0)

    def uniform(low: float, high: float) -> float:
        return low + (high - low) * torch.rand((), generator=generator).item()

    narrowed_by_both = 0
    for row in range(1000):
        size = int(uniform(2, 400))
        logits = torch.randn(size, generator=generator) * uniform(0.1, 6)
        sampling = Sampling(
            temperature=uniform(0.2, 2),
            top_k=0 if row % 3 == 0 else int(uniform(1, size * 1.2)) + 1,
            top_p=1.0 if row % 3 == 1 else uniform(0.01, 1),
        )
        scores = transformers_scores(logits, sampling)
        expected = set(scores.isfinite().nonzero().flatten().tolist())
        assert kept(sampling, logits) == expected, (row, sampling)
        by_top_k = kept(Sampling(temperature=sampling.temperature, top_k=sampling.top_k), logits)
        narrowed_by_both += len(expected) < len(by_top_k) < size
        ids, own = survivors(logits, sampling)
        torch.testing.assert_close(own.softmax(-1), scores[ids].softmax(-1), rtol=1e-4, atol=1e-6)
    assert narrowed_by_both > 200


def test_kept_sets_equal_transformers_in_a_large_vocabulary() -> None:
    """Mass summed in another order, or from the other end, cuts elsewhere among 150,000 tokens."""
    generator = torch.Generator().manual_seed(2)
    for temperature in (0.7, 0.9, 1.0, 1.1):
        for _ in range(5):
            logits = 3 * torch.randn(151_936, generator=generator) + 10
            sampling = Sampling(temperature=temperature, top_p=0.95)
            expected = transformers_scores(logits, sampling).isfinite()
            assert kept(sampling, logits) == set(expected.nonzero().flatten().tolist())


def test_tied_rows_keep_as_much_as_transformers() -> None:
    """transformers breaks ties under top-p by an unstable sort: the kept scores are equal, not the ids."""
    generator = torch.Generator().manual_seed(1)
    for row in range(200):
        logits = torch.randint(-3, 4, (50,), generator=generator).float()
        sampling = Sampling(temperature=0.8, top_k=1 + row % 60, top_p=0.05 + 0.9 * (row % 17) / 17)
        scores = transformers_scores(logits, sampling)
        expected = scores[scores.isfinite()]
        ids, own = survivors(logits, sampling)
        assert sorted(logits[ids].tolist()) == sorted(logits[scores.isfinite()].tolist())
        assert len(own) == len(expected)


def test_temperature_zero_takes_the_lowest_of_equal_maxima_whatever_the_seed() -> None:
    logits = torch.zeros(1000)
    logits[[31, 400, 999]] = 2.5
    for seed in (None, 0, 1, 2**64 - 1):
        assert Sampler(Sampling(seed=seed))(logits) == 31
    assert Sampler(Sampling(top_k=5, top_p=0.1))(logits) == 31


@pytest.mark.parametrize("temperature", [1e-6, 1e-30, 1e-45, 1e-300, 5e-324])
def test_tiny_temperatures_stay_finite(temperature: float) -> None:
    """Dividing by a temperature that float32 rounds to 0 made every score NaN or infinite."""
    logits = torch.tensor([80.0, 90.0, -3e38, 89.0])
    sampling = Sampling(temperature=temperature, top_p=0.9, seed=0)
    assert [Sampler(sampling)(logits) for _ in range(20)] == [1] * 20
    assert not survivors(logits, sampling)[1].isnan().any()
    tied = Sampler(Sampling(temperature=temperature, seed=0))
    assert {tied(torch.tensor([7.0, 1.0, 7.0])) for _ in range(50)} == {0, 2}


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1.0, seed=11),
        Sampling(temperature=0.7, seed=12),
        Sampling(temperature=1.3, top_k=5, seed=13),
        Sampling(temperature=1.0, top_p=0.8, seed=14),
        Sampling(temperature=2.0, top_k=6, top_p=0.9, seed=15),
    ],
)
def test_sampled_distribution_within_chi_square(sampling: Sampling) -> None:
    """A temperature of 1.0 was once taken for greedy."""
    logits = torch.tensor([0.0, 1.2, -0.7, 2.1, 0.4, -1.5, 1.9, 0.1])
    scores = transformers_scores(logits, sampling)
    probabilities = scores.softmax(-1).tolist()
    sampler, draws = Sampler(sampling), 20_000
    rows = [sampler.choice(ahead) for ahead in range(draws)]
    chosen = choose_now(logits.expand(draws, -1), rows)[:, 0].int().tolist()
    assert chosen[:500] == [sampler(logits) for _ in range(500)], "the sampler itself chooses otherwise"
    counts = Counter(chosen)
    assert set(counts) == {token for token, probability in enumerate(probabilities) if probability > 0}
    statistic = sum(
        (counts[token] - draws * probability) ** 2 / (draws * probability)
        for token, probability in enumerate(probabilities)
        if probability > 0
    )
    assert statistic < 24.3  # the 0.999 quantile for 7 degrees of freedom, the most that occur here


def test_tokens_without_mass_are_never_drawn() -> None:
    logits = torch.full((100,), -math.inf)
    logits[[3, 50, 98]] = torch.tensor([1.0, 0.5, 0.7])
    for sampling in (Sampling(temperature=1.0, seed=0), Sampling(temperature=1.0, top_k=40, seed=0)):
        sampler = Sampler(sampling)
        assert {sampler(logits) for _ in range(300)} == {3, 50, 98}


@pytest.mark.parametrize(("number", "expected"), [(0.0, 1), (1 - 2**-53, 3)])
@pytest.mark.parametrize("top_k", [0, 4])
def test_the_ends_of_the_random_range_meet_tokens_with_mass(
    number: float, expected: int, top_k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "rand", lambda *_, **__: torch.tensor(number, dtype=torch.float64))
    logits = torch.tensor([-math.inf, 1.0, 0.3, 0.7, -math.inf])
    for temperature in torch.linspace(0.3, 3, 200).tolist():  # totals on either side of 1
        assert Sampler(Sampling(temperature=temperature, top_k=top_k))(logits) == expected


def sequence(sampler: Sampler, length: int = 64) -> list[int]:
    return [sampler(torch.zeros(5000)) for _ in range(length)]


def test_a_seed_fixes_the_sequence_and_its_absence_does_not() -> None:
    seeded = Sampling(temperature=0.9, seed=42)
    assert sequence(Sampler(seeded)) == sequence(Sampler(seeded))
    assert sequence(Sampler(seeded)) != sequence(Sampler(Sampling(temperature=0.9, seed=43)))
    unseeded = Sampling(temperature=0.9)
    assert sequence(Sampler(unseeded)) != sequence(Sampler(unseeded))
    assert len(set(sequence(Sampler(seeded)))) > 50


def test_requests_do_not_share_random_numbers() -> None:
    """A seeded request's text once depended on its neighbours in the batch."""
    alone = sequence(Sampler(Sampling(temperature=0.9, seed=42)))
    torch.manual_seed(0)
    before = torch.get_rng_state()
    ours, other = Sampler(Sampling(temperature=0.9, seed=42)), Sampler(Sampling(temperature=0.9))
    together = []
    for _ in range(64):
        other(torch.zeros(5000))
        together.append(ours(torch.zeros(5000)))
        assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    assert together == alone


def test_one_number_is_drawn_for_each_token_whatever_the_filters() -> None:
    """The choice is the inverse of the cumulative mass at the n-th number of the seed's stream."""
    generator = torch.Generator().manual_seed(7)
    numbers = torch.rand(50, generator=generator, dtype=torch.float64)
    sampler = Sampler(Sampling(temperature=1.0, seed=7))
    logits = torch.zeros(1000)
    assert [sampler(logits) for _ in range(50)] == (numbers * 1000).long().tolist()


def test_logits_are_left_alone() -> None:
    logits = torch.randn(100, generator=torch.Generator().manual_seed(0))
    copy = logits.clone()
    Sampler(Sampling(temperature=0.5, top_k=10, top_p=0.5))(logits)
    assert torch.equal(logits, copy)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_overflowed_logits_are_an_error(value: float, temperature: float) -> None:
    logits = torch.zeros(10)
    logits[4] = value
    with pytest.raises(RequestError, match=rf"the largest logit is {value} \(token 4\)"):
        Sampler(Sampling(temperature=temperature))(logits)
    with pytest.raises(RequestError, match="the largest logit is -inf"):
        Sampler(Sampling(temperature=temperature))(torch.full((3,), -math.inf))


@pytest.mark.parametrize("shape", [(), (0,), (1, 4)])
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(GeometryError, match="logits of one position"):
        Sampler(Sampling())(torch.zeros(shape))


def test_nothing_is_drawn_at_temperature_zero() -> None:
    with pytest.raises(RequestError, match="nothing is drawn"):
        survivors(LOGITS, Sampling())
