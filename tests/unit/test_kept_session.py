"""A second run on a backend that captures: what is captured once serves both, and nothing else is kept."""

import gc
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import fuel_core
from fuel_core import LanguageModel
from fuel_core.decode import CudaGraphBackend, EagerBackend
from fuel_core.generate.kept_session import roomy
from fuel_core.testing.tape import TapeDevice


class AheadBackend(EagerBackend):
    """One that asks for room, and captures nothing."""

    def runs_ahead(self, device: torch.device) -> bool:
        return True


@pytest.fixture
def backend(device: TapeDevice) -> CudaGraphBackend:
    return CudaGraphBackend(graphs=lambda _: device)


@pytest.fixture
def model(checkpoint: Callable[..., Path]) -> LanguageModel:
    return fuel_core.load(checkpoint("mixed-window"), dtype="float64")


def test_a_second_generate_of_another_length_captures_nothing(
    model: LanguageModel, device: TapeDevice, backend: CudaGraphBackend
) -> None:
    for prompt, tokens in (([5, 9], 12), ([7] * 30, 40), ([1, 2, 3], 5)):
        found = model.generate(prompt, max_tokens=tokens, backend=backend, strict=True)
        wanted = model.generate(prompt, max_tokens=tokens, backend="eager")
        assert found.token_ids == wanted.token_ids
        assert (found.counters.plans, found.counters.captures) == (1, 2), "the step, and the choice behind it"
    assert device.batches == [1, 1]


def test_a_closed_or_failed_run_leaves_its_session_too(
    model: LanguageModel, device: TapeDevice, backend: CudaGraphBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = model.stream([5, 9], max_tokens=30, backend=backend)
    assert next(iter(stream))
    stream.close()
    run = model.run([[5, 9]], backend=backend)
    next(iter(run))
    with monkeypatch.context() as patch:
        patch.setattr("fuel_core.decode.session.drive_chosen", None)
        with pytest.raises(TypeError):
            run.finish()
    wanted = model.generate([5, 9], max_tokens=12, backend="eager")
    assert model.generate([5, 9], max_tokens=12, backend=backend).token_ids == wanted.token_ids
    assert device.batches == [1, 1]


def test_two_runs_at_a_time_have_a_session_each(
    model: LanguageModel, device: TapeDevice, backend: CudaGraphBackend
) -> None:
    first, second = (iter(model.run([[seed, 9]], backend=backend)) for seed in (5, 6))
    pieces = [[next(first).token_id, next(second).token_id] for _ in range(10)]
    for place, seed in enumerate((5, 6)):
        wanted = model.generate([seed, 9], max_tokens=10, backend="eager").token_ids
        assert tuple(pair[place] for pair in pieces) == wanted


@pytest.mark.parametrize("change", ["rows", "capacity", "backend", "strict", "weights"])
def test_what_does_not_fit_is_given_up_before_another_is_made(
    model: LanguageModel,
    device: TapeDevice,
    backend: CudaGraphBackend,
    change: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fuel_core.generate.kept_session.LEAST_CAPACITY", 16)
    options = {"backend": backend, "strict": True}
    model.generate([5, 9], max_tokens=12, **options)  # type: ignore[call-overload]
    (kept, _), *_ = model.kept._kept
    pool = weakref.ref(kept.pool)
    del kept
    if change == "weights":
        model.decoder.load_state_dict(model.decoder.state_dict(), assign=True)
    options |= {"backend": AheadBackend()} if change == "backend" else {}
    options |= {"strict": False} if change == "strict" else {}
    prompts = [[5, 9], [6]] if change == "rows" else [[5, 9]]
    alive: list[bool] = []
    make = LanguageModel.session

    def making(self: LanguageModel, *args: object, **named: object) -> object:
        gc.collect()
        alive.append(pool() is not None)
        return make(self, *args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(LanguageModel, "session", making)
    model.generate(prompts, max_tokens=40 if change == "capacity" else 12, **options)  # type: ignore[call-overload]
    assert alive == [False]


def test_an_eager_run_leaves_nothing(model: LanguageModel) -> None:
    model.generate([5, 9], max_tokens=12, backend="eager")
    assert not model.kept._kept


def test_a_session_is_freed_when_asked_and_with_its_model(
    checkpoint: Callable[..., Path], backend: CudaGraphBackend
) -> None:
    """Engines kept caches alive in attributes that nobody could reach."""
    model = fuel_core.load(checkpoint("mixed-window"))
    pools = []
    for _ in range(2):
        model.generate([5, 9], max_tokens=12, backend=backend)
        (kept, _), *_ = model.kept._kept
        pools.append(weakref.ref(kept.pool))
        del kept
        if len(pools) == 1:
            model.release_session()
            gc.collect()
            assert pools[0]() is None
    del model
    gc.collect()
    assert pools[1]() is None


def test_other_options_of_the_same_weights_keep_their_own(
    model: LanguageModel, backend: CudaGraphBackend
) -> None:
    model.generate([5, 9], max_tokens=12, backend=backend)
    assert not model.with_options(window_layers="last").kept._kept


def test_capacity_of_a_session_that_may_be_kept() -> None:
    assert [roomy(tokens, 10_000) for tokens in (1, 1024, 1025, 5000, 9000)] == [
        1024,
        1024,
        2048,
        8192,
        10_000,
    ]
