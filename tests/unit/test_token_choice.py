"""The choice of tokens for a batch, as a device runs it, is the sampler's own, token for token."""

from dataclasses import replace

import pytest
import torch

from fuel_core.decode.token_choice import ChoiceParts, RowChoice, choice_numbers, choose
from fuel_core.generate.sampling import Sampler, Sampling, survivors
from fuel_core.testing.dispatch import HOST_READ, dispatched
from fuel_core.testing.tape import Tape

EVERY_PART = ChoiceParts(draw=True, top_k=True, top_p=True, min_p=True)

KINDS = [
    Sampling(),
    Sampling(top_k=3, top_p=0.5),
    Sampling(temperature=1.0),
    Sampling(temperature=1e-6),
    Sampling(temperature=5e-324, top_p=0.9),
    Sampling(temperature=0.8, top_k=1),
    Sampling(temperature=1.3, top_k=40),
    Sampling(temperature=1.3, top_k=10**30),
    Sampling(temperature=0.9, top_p=1e-8),
    Sampling(temperature=0.9, top_p=5e-324),
    Sampling(temperature=0.9, top_p=0.7),
    Sampling(temperature=0.9, top_p=1 - 2**-53),
    Sampling(temperature=1.1, top_k=7, top_p=0.8),
    Sampling(temperature=1.1, min_p=0.05),
    Sampling(temperature=0.7, top_k=200, top_p=0.95, min_p=0.01),
]


def numbers(rows: list[RowChoice]) -> torch.Tensor:
    return torch.tensor(choice_numbers(rows), dtype=torch.float64)


def logits_of(kind: str, generator: torch.Generator, rows: int, size: int = 300) -> torch.Tensor:
    if kind == "tied":
        return torch.randint(-6, 7, (rows, size), generator=generator).float()
    logits = 4 * torch.randn(rows, size, generator=generator)
    if kind == "masked":
        return logits.masked_fill(torch.rand(rows, size, generator=generator) < 0.6, -torch.inf)
    return logits.to({"float64": torch.float64, "bfloat16": torch.bfloat16}.get(kind, torch.float32))


@pytest.mark.parametrize("kind", ["float32", "float64", "bfloat16", "tied", "masked"])
def test_a_mixed_batch_gets_the_samplers_tokens(kind: str) -> None:
    """Fifteen kinds of rows in one batch, greedy ones too: each as its own sampler chooses alone."""
    generator = torch.Generator().manual_seed(3)
    samplers = [Sampler(replace(sampling, seed=seed)) for seed, sampling in enumerate(KINDS)]
    others = [Sampler(replace(sampling, seed=seed)) for seed, sampling in enumerate(KINDS)]
    drawn = 0
    for _ in range(150):
        logits_BV = logits_of(kind, generator, len(KINDS))
        rows = [sampler.choice() for sampler in samplers]
        chosen = choose(logits_BV, numbers(rows), ChoiceParts.of(rows)).tolist()
        found = [
            sampler.count(int(token), peak) for sampler, (token, peak) in zip(samplers, chosen, strict=True)
        ]
        assert found == [sampler(logits_V) for sampler, logits_V in zip(others, logits_BV, strict=True)]
        drawn += sum(token != best for token, best in zip(found, logits_BV.argmax(-1).tolist(), strict=True))
    assert drawn > 500, "vacuous: almost every token was the most probable one"


@pytest.mark.parametrize("sampling", KINDS, ids=str)
def test_parts_that_a_row_does_not_need_do_not_change_it(sampling: Sampling) -> None:
    generator = torch.Generator().manual_seed(4)
    sampler = Sampler(replace(sampling, seed=1))
    rows = [sampler.choice(ahead) for ahead in range(40)]
    logits_BV = logits_of("tied", generator, len(rows))
    least = choose(logits_BV, numbers(rows), ChoiceParts.of(rows))
    assert torch.equal(choose(logits_BV, numbers(rows), EVERY_PART), least)


def test_the_drawn_token_is_where_the_mass_passes_the_number() -> None:
    """By hand: probabilities 0.1, 0.2, 0.3, 0.4 by id; of the three best, 2/9, 3/9 and 4/9."""
    logits_BV = torch.tensor([[0.1, 0.2, 0.3, 0.4]]).log()
    for number, token in ((0.0, 0), (0.09, 0), (0.11, 1), (0.29, 1), (0.31, 2), (0.61, 3), (0.999, 3)):
        row = RowChoice(temperature=1.0, number=number)
        assert choose(logits_BV, numbers([row]), ChoiceParts.of([row]))[0, 0] == token
    for number, token in ((0.0, 1), (0.22, 1), (0.23, 2), (0.55, 2), (0.56, 3)):
        row = RowChoice(temperature=1.0, top_k=3, number=number)
        assert choose(logits_BV, numbers([row]), ChoiceParts.of([row]))[0, 0] == token


@pytest.mark.parametrize("top_k", [0, 5])
def test_of_equal_scores_top_p_keeps_the_later_ids(top_k: int) -> None:
    """Under an unstable sort the kept ids, and so the token of a seed, depended on how many were sorted."""
    logits_V = torch.zeros(8)
    logits_V[[1, 4, 6]] = -9.0  # too little mass to be kept
    sampling = Sampling(temperature=1.0, top_p=0.5, top_k=top_k)
    assert survivors(logits_V, sampling)[0].tolist() == [3, 5, 7]


@pytest.mark.parametrize("parts", [ChoiceParts.of([RowChoice()]), EVERY_PART], ids=["greedy", "all"])
def test_nothing_is_read_on_the_host_and_a_replay_follows_its_inputs(parts: ChoiceParts) -> None:
    generator = torch.Generator().manual_seed(5)
    first, second = (logits_of("float32", generator, 2) for _ in range(2))
    one = [RowChoice(temperature=1.5, number=0.1), RowChoice()]
    two = [RowChoice(), RowChoice(temperature=2.0, top_k=90, top_p=0.9, min_p=1e-4, number=0.8)]
    if not parts.draw:
        one = two = [RowChoice(), RowChoice()]
    wanted = choose(second, numbers(two), parts)
    logits_BV, choices_B5 = first.clone(), numbers(one)
    assert HOST_READ not in dispatched(lambda: choose(logits_BV, choices_B5, parts))
    tape = Tape()
    with tape:
        tape.output = choose(logits_BV, choices_B5, parts)
    assert not torch.equal(tape.output, wanted)
    logits_BV.copy_(second)
    choices_B5.copy_(numbers(two))
    tape.replay()
    assert torch.equal(tape.output, wanted)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_an_overflowed_row_shows_and_harms_no_neighbour(value: float) -> None:
    """An id beyond the vocabulary would be looked up by the step that is launched next."""
    logits_BV = logits_of("float32", torch.Generator().manual_seed(6), 3, size=50)
    rows = [RowChoice(temperature=1.0, top_k=5, top_p=0.9, min_p=0.01, number=0.7)] * 3
    right = choose(logits_BV, numbers(rows), EVERY_PART)
    logits_BV[1, 17] = value
    found = choose(logits_BV, numbers(rows), EVERY_PART)
    assert torch.equal(found[[0, 2]], right[[0, 2]])
    assert found[1].tolist() == pytest.approx([17, value], nan_ok=True)
