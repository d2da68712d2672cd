"""A session serves one call at a time, whoever calls."""

import threading
from collections.abc import Callable

import pytest
from torch import Tensor

from fuel_core.decode.backends.eager import EagerStep
from fuel_core.errors import SessionBusy
from fuel_core.family import Family
from fuel_core.testing import Case
from fuel_core.testing.checks import EXACT, assert_close


@pytest.fixture
def case(qwen2: Family) -> Case:
    return Case.build(qwen2, "mixed-window")


def test_a_second_thread_is_refused_while_a_step_runs(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads overwrote each other's inputs: both sequences went on with a mixture of the two."""
    tokens = case.token_ids(seed=1)
    session = case.session(rows=2)
    first, second = session.caches
    session.prefill(tokens[:5], first)
    inside, leave = threading.Event(), threading.Event()
    right: Callable[[EagerStep, int], Tensor] = EagerStep.replay

    def slow(step: EagerStep, attended: int) -> Tensor:
        inside.set()
        assert leave.wait(30)
        return right(step, attended)

    monkeypatch.setattr(EagerStep, "replay", slow)
    answers: list[Tensor] = []
    thread = threading.Thread(target=lambda: answers.append(session.step([[tokens[5]]], (first,))))
    thread.start()
    assert inside.wait(30)
    for name, call in (
        ("step", lambda: session.step([[1]], (second,))),
        ("prefill", lambda: session.prefill([1], second)),
        ("plan_ahead", lambda: session.plan_ahead((2,))),
    ):
        with pytest.raises(SessionBusy, match=f"qwen2: session.{name}: another call"):
            call()
    leave.set()
    thread.join()
    assert second.token_ids == []
    assert_close(answers[0][0], case.one_shot(tokens[:6])[-1], EXACT, "the call that ran")
    assert_close(session.step([[tokens[6]]], (first,))[0], case.one_shot(tokens[:7])[-1], EXACT, "the next")


def test_an_error_leaves_the_session_free(case: Case) -> None:
    session = case.session()
    for _ in range(2):
        with pytest.raises(Exception, match="outside of the vocabulary"):
            session.step([[-1]])
    session.step([[1]])
