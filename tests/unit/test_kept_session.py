"""A second run on a backend that captures: what is captured once serves both, and nothing else is kept."""

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from copy import deepcopy
from pathlib import Path

import pytest
import torch

import fuel_core
from fuel_core import GenerationSettings, LanguageModel
from fuel_core.decode import CudaGraphBackend, EagerBackend
from fuel_core.errors import FuelWarning
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


def test_a_closed_run_leaves_its_session_too(
    model: LanguageModel, device: TapeDevice, backend: CudaGraphBackend
) -> None:
    stream = model.stream([5, 9], max_tokens=30, backend=backend)
    assert next(iter(stream))
    stream.close()
    wanted = model.generate([5, 9], max_tokens=12, backend="eager")
    assert model.generate([5, 9], max_tokens=12, backend=backend).token_ids == wanted.token_ids
    assert device.batches == [1, 1]


def test_a_failed_run_leaves_nothing(
    model: LanguageModel, backend: CudaGraphBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its session may no longer be one that can serve: a strict one that would have to plan again."""
    run = model.run([[5, 9]], backend=backend)
    next(iter(run))
    with monkeypatch.context() as patch:
        patch.setattr("fuel_core.decode.session.drive_chosen", None)
        with pytest.raises(TypeError):
            run.finish()
    assert not model._kept_session._kept


def test_a_run_that_ends_late_does_not_displace_a_newer_session(
    model: LanguageModel, backend: CudaGraphBackend
) -> None:
    late = model.stream([5, 9], max_tokens=30, backend=backend)
    assert next(iter(late))
    model.generate([[5, 9], [6]], max_tokens=5, backend=backend)
    late.close()
    (kept, *_), *_ = model._kept_session._kept
    assert len(kept.caches) == 2


def test_a_step_that_was_not_captured_after_all_is_not_kept(
    model: LanguageModel, device: TapeDevice, backend: CudaGraphBackend
) -> None:
    """What found too little memory once would have run eagerly for ever."""
    device.failure = torch.OutOfMemoryError("CUDA out of memory")
    with pytest.warns(FuelWarning, match="runs eagerly"):
        model.generate([5, 9], max_tokens=5, backend=backend)
    assert not model._kept_session._kept
    assert model.generate([5, 9], max_tokens=5, backend=backend).counters.captures == 2


def test_a_session_that_has_no_room_for_more_is_made_as_it_must_be(
    model: LanguageModel, backend: CudaGraphBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, asked = LanguageModel.session, []

    def little(self: LanguageModel, capacity: int, *args: object, **named: object) -> object:
        asked.append(capacity)
        if capacity > 100:
            raise torch.OutOfMemoryError
        return make(self, capacity, *args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(LanguageModel, "session", little)
    assert len(model.generate([5, 9], max_tokens=12, backend=backend).token_ids) == 12
    assert asked == [256, 14]


INFERENCE = [nullcontext, torch.inference_mode]


@pytest.mark.parametrize("later", INFERENCE)
@pytest.mark.parametrize("first", INFERENCE)
@pytest.mark.parametrize("name", ["eager", "taped"])
def test_inference_mode_before_or_after(
    model: LanguageModel, backend: CudaGraphBackend, first: type, later: type, name: str
) -> None:
    """What is made in that mode may be written in that mode alone: the next run failed."""
    chosen = "eager" if name == "eager" else backend
    wanted = model.generate([5, 9], max_tokens=12, backend="eager").token_ids
    with first():
        session = model.session(64, backend=chosen)
        model.generate([5, 9], max_tokens=12, backend=chosen)
    with later():
        assert model.generate([5, 9], max_tokens=12, backend=chosen).token_ids == wanted
        assert model.run([[5, 9]], max_tokens(12), session=session).finish()[0].token_ids == wanted


def max_tokens(count: int) -> GenerationSettings:
    return GenerationSettings(max_tokens=count)


def test_two_runs_at_a_time_have_a_session_each(
    model: LanguageModel, device: TapeDevice, backend: CudaGraphBackend
) -> None:
    first, second = (iter(model.run([[seed, 9]], backend=backend)) for seed in (5, 6))
    pieces = [[next(first).token_id, next(second).token_id] for _ in range(10)]
    for place, seed in enumerate((5, 6)):
        wanted = model.generate([seed, 9], max_tokens=10, backend="eager").token_ids
        assert tuple(pair[place] for pair in pieces) == wanted


@pytest.fixture
def no_collector() -> Iterator[None]:
    """What is freed then is freed at once."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


CHANGES: dict[str, Callable[[LanguageModel], object]] = {
    "loaded": lambda model: model.decoder.load_state_dict(model.decoder.state_dict(), assign=True),
    "loaded in part": lambda model: model.decoder.layers.load_state_dict(
        {name: value.clone() for name, value in model.decoder.layers.state_dict().items()}, assign=True
    ),
    "data": lambda model: setattr(model.decoder.head.weight, "data", model.decoder.head.weight.clone()),
    "layer": lambda model: model.decoder.layers.__setitem__(1, deepcopy(model.decoder.layers[1])),
    "forward": lambda model: setattr(model.decoder.layers[1], "forward", model.decoder.layers[1].forward),
    "hook for hook": lambda model: (
        model.decoder.layers[0]._forward_hooks.popitem(),
        model.decoder.layers[0].register_forward_hook(lambda *_: None),
    ),
    "hook": lambda model: model.decoder.layers[1].register_forward_hook(lambda *_: None),
}


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("change", ["rows", "capacity", "backend", "another backend", "strict", *CHANGES])
def test_what_does_not_fit_is_given_up_before_another_is_made(
    model: LanguageModel,
    device: TapeDevice,
    backend: CudaGraphBackend,
    change: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fuel_core.generate.kept_session.LEAST_CAPACITY", 16)
    model.decoder.layers[0].register_forward_hook(lambda *_: None)
    options = {"backend": backend, "strict": True}
    model.generate([5, 9], max_tokens=12, **options)  # type: ignore[call-overload]
    (kept, *_), *_ = model._kept_session._kept
    pool = weakref.ref(kept.pool)
    del kept
    if change in CHANGES:
        CHANGES[change](model)
    options |= {"backend": AheadBackend()} if change == "backend" else {}
    options |= {"backend": CudaGraphBackend(graphs=lambda _: device)} if change == "another backend" else {}
    options |= {"strict": False} if change == "strict" else {}
    prompts = [[5, 9], [6]] if change == "rows" else [[5, 9]]
    alive: list[bool] = []
    make = LanguageModel.session

    def making(self: LanguageModel, *args: object, **named: object) -> object:
        alive.append(pool() is not None)
        return make(self, *args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(LanguageModel, "session", making)
    model.generate(prompts, max_tokens=40 if change == "capacity" else 12, **options)  # type: ignore[call-overload]
    assert alive == [False]


def test_an_eager_run_leaves_nothing(model: LanguageModel) -> None:
    model.generate([5, 9], max_tokens=12, backend="eager")
    assert not model._kept_session._kept


@pytest.mark.usefixtures("no_collector")
def test_a_session_is_freed_when_asked_and_with_its_model(
    checkpoint: Callable[..., Path], backend: CudaGraphBackend
) -> None:
    """Engines kept caches alive in attributes that nobody could reach."""
    model = fuel_core.load(checkpoint("mixed-window"))
    pools = []
    for _ in range(2):
        model.generate([5, 9], max_tokens=12, backend=backend)
        (kept, *_), *_ = model._kept_session._kept
        pools.append(weakref.ref(kept.pool))
        del kept
        if len(pools) == 1:
            model.release_session()
            assert pools[0]() is None
    del model
    assert pools[1]() is None


def test_other_options_of_the_same_weights_keep_their_own(
    model: LanguageModel, backend: CudaGraphBackend
) -> None:
    model.generate([5, 9], max_tokens=12, backend=backend)
    assert not model.with_options(window_layers="last")._kept_session._kept


def test_capacity_of_a_session_that_may_be_kept() -> None:
    asked = (1, 1024, 1025, 5000, 9000, 9900, 70_000)
    assert [roomy(tokens, 80_000) for tokens in asked] == [1024, 1024, 2048, 5120, 9216, 10_240, 73_728]
    assert roomy(9500, 10_000) == 10_000
