"""Generation that runs a step ahead gives what it gives otherwise, whatever ends, joins or goes on."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import fuel_core
from fuel_core import LanguageModel
from fuel_core.decode import CudaGraphBackend, EagerBackend
from fuel_core.errors import RequestError, SessionBusy
from fuel_core.generate.sampling import Sampling
from fuel_core.generate.settings import GenerationSettings
from fuel_core.testing.tape import TapeDevice

PROMPTS = [[5, 9], [1, 2, 3, 4, 5], [7] * 11, [60, 61, 62], [8, 3]]


@pytest.fixture
def model(checkpoint: Callable[..., Path]) -> LanguageModel:
    return fuel_core.load(checkpoint("mixed-window"), dtype="float64")


class AheadBackend(EagerBackend):
    """The eager backend as where the host waits for its device."""

    def runs_ahead(self, device: torch.device) -> bool:
        return True


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"sampling": Sampling(temperature=1.4, seed=3), "n": 2},
        {"sampling": Sampling(temperature=1.4, top_k=30, top_p=0.9, min_p=0.01, seed=3), "n": 3},
        {"sampling": Sampling(temperature=1.4, seed=3), "min_tokens": 5, "stop_token_ids": [*range(60)]},
        {"sampling": Sampling(temperature=1.4, seed=3), "stop": ["a", "b", "c", "d", "e"]},
        {"sampling": Sampling(temperature=1.4, seed=3), "stop_token_ids": [*range(0, 96, 7)]},
        {"sampling": Sampling(temperature=1.4, seed=3, repetition_penalty=1.5)},
        {"sampling": Sampling(temperature=1.4, seed=3, presence_penalty=1.5)},
        {"sampling": Sampling(temperature=1.4, seed=3, logit_bias={5: 3.0})},
        {"sampling": Sampling(temperature=1.4, seed=3), "logprobs": 2},
        {"processors": [lambda logits, prompt, generated: -logits]},
    ],
    ids=[
        "greedy",
        "two",
        "filters",
        "min_tokens",
        "stop strings",
        "stop tokens",
        "repetition",
        "presence",
        "bias",
        "logprobs",
        "processors",
    ],
)
def test_gives_the_same_choices(model: LanguageModel, settings: dict[str, object]) -> None:
    asked = GenerationSettings(max_tokens=12, **settings)  # type: ignore[arg-type]
    wanted = model.generate(PROMPTS, asked, batch=2)
    for backend in (AheadBackend(), CudaGraphBackend(graphs=lambda _: TapeDevice())):
        found = model.generate(PROMPTS, asked, batch=2, backend=backend, strict=True)
        for one, other in zip(found, wanted, strict=True):
            for own, theirs in zip(one.choices, other.choices, strict=True):
                assert (own.token_ids, own.text) == (theirs.token_ids, theirs.text)
                assert own.finish_reason == theirs.finish_reason
                assert len(own.logprobs) == len(theirs.logprobs)
        assert found[-1].counters.plans == 1


def test_runs_ahead_unless_the_host_must_choose(model: LanguageModel) -> None:
    """Non-vacuity: a discard shows that a step was under way when the text ended."""
    free = model.generate(PROMPTS[0], max_tokens=12).token_ids
    for sampling, discards in ((Sampling(), 1), (Sampling(presence_penalty=1e-9), 0)):
        settings = GenerationSettings(max_tokens=12, stop_token_ids=[free[4]], sampling=sampling)
        session = model.session(64, backend=AheadBackend())
        for _ in range(2):
            model.run([PROMPTS[0]], settings, session=session).finish()
        assert session.counters.discards == discards
    session = model.session(64, backend=AheadBackend())
    for _ in range(2):
        model.run([PROMPTS[0]], GenerationSettings(max_tokens=12), session=session).finish()
    assert session.counters.discards == 0, "an end by length is known before its last step is launched"
    assert session.counters.replays == 22


def test_a_chat_goes_on_as_if_nothing_had_been_launched(model: LanguageModel) -> None:
    """The row keeps what it holds; the step that was under way wrote one place beyond."""
    free = model.generate(PROMPTS[1], max_tokens=12).token_ids
    settings = GenerationSettings(max_tokens=12, stop_token_ids=[free[5]])
    session = model.session(96, backend=AheadBackend())
    text = PROMPTS[1]
    for turn in range(3):
        (ahead,) = model.run([text], settings, session=session).finish()
        assert ahead.token_ids == model.generate(text, settings).token_ids, f"turn {turn}"
        text = [*text, *ahead.token_ids, 9, 8]
    cache = session.caches[0]
    logits = session.prefill([3, 4], cache)
    torch.testing.assert_close(logits, model.forward([cache.token_ids])[0, -1], rtol=1e-10, atol=1e-10)
    assert session.counters.discards > 0


def test_a_run_that_is_closed_leaves_its_session_usable(model: LanguageModel) -> None:
    session = model.session(64, backend=AheadBackend())
    run = model.run([PROMPTS[1]], GenerationSettings(max_tokens=12), session=session)
    for _, _ in zip(range(4), run, strict=False):
        pass
    run.close()
    (found,) = model.run([PROMPTS[2]], GenerationSettings(max_tokens=12), session=session).finish()
    assert found.token_ids == model.generate(PROMPTS[2], max_tokens=12).token_ids


def test_a_session_used_between_two_pieces_ends_the_run(model: LanguageModel) -> None:
    """What was launched ahead would answer from before."""
    for backend in (AheadBackend(), EagerBackend()):
        session = model.session(64, backend=backend)
        run = iter(model.run([PROMPTS[1]], GenerationSettings(max_tokens=12), session=session))
        for _ in range(5):
            next(run)
        session.step([[17]])
        with pytest.raises(SessionBusy):
            next(run)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_overflowed_logits_are_an_error(model: LanguageModel, temperature: float) -> None:
    sampling = Sampling(temperature=temperature, seed=0)
    settings = GenerationSettings(max_tokens=8, sampling=sampling, ignore_eos=True)
    session = model.session(64, backend=AheadBackend())
    run = iter(model.run([PROMPTS[0]], settings, session=session))
    for _ in range(3):
        next(run)
    with torch.no_grad():
        model.decoder.head.weight[40] = torch.inf
    with pytest.raises(RequestError, match="the largest logit is"):
        for _ in run:
            pass
