"""Generation as a caller sees it: batches, seeds, stops, log-probabilities, async."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import fuel_core
from fuel_core import LanguageModel
from fuel_core.errors import CapacityError, RequestError, SessionBusy
from fuel_core.generate.sampling import Sampling
from fuel_core.generate.settings import GenerationSettings

PROMPTS = [[5, 9], [1, 2, 3, 4, 5], [7] * 11, [60, 61, 62], [8, 3]]


@pytest.fixture
def model(checkpoint: Callable[..., Path]) -> LanguageModel:
    return fuel_core.load(checkpoint("mixed-window"), dtype="float64")


def tokens(model: LanguageModel, prompts: list[list[int]], batch: int, **settings: object) -> list[object]:
    asked = GenerationSettings(max_tokens=12, **settings)  # type: ignore[arg-type]
    return [completion.token_ids for completion in model.generate(prompts, asked, batch=batch)]


class TestBatch:
    @pytest.mark.parametrize("batch", [2, 3, 8])
    def test_rows_are_as_if_alone_and_in_order(self, model: LanguageModel, batch: int) -> None:
        """Shared position counters and padding made a row's answer depend on its neighbours."""
        alone = [model.generate(prompt, max_tokens=12).token_ids for prompt in PROMPTS]
        assert tokens(model, PROMPTS, batch) == alone

    def test_a_row_that_ends_gives_its_place(self, model: LanguageModel) -> None:
        free = model.generate(PROMPTS[0], max_tokens=12).token_ids
        settings = GenerationSettings(max_tokens=12, stop_token_ids=[free[2]])
        together = model.generate(PROMPTS, settings, batch=2)
        assert together[0].token_ids == free[: free.index(free[2]) + 1]
        assert together[0].finish_reason == "stop"
        alone = [model.generate(prompt, settings) for prompt in PROMPTS]
        assert [c.token_ids for c in together] == [c.token_ids for c in alone]

    def test_one_plan_a_batch_size(self, model: LanguageModel) -> None:
        """Rows that end at different tokens do not shrink the batch: that would be another plan."""
        free = [model.generate(prompt, max_tokens=12).token_ids for prompt in PROMPTS]
        settings = GenerationSettings(max_tokens=12, stop_token_ids=[free[0][2], free[2][5]])
        completions = model.generate(PROMPTS, settings, batch=3, strict=True)
        assert len({len(completion.token_ids) for completion in completions}) > 1
        assert completions[-1].counters.plans == 1

    def test_pieces_say_whose_they_are(self, model: LanguageModel) -> None:
        run = model.run(PROMPTS[:2], GenerationSettings(max_tokens=6, n=2, sampling=Sampling(temperature=2)))
        texts: dict[tuple[int, int], str] = {}
        for piece in run:
            key = (piece.prompt, piece.choice)
            texts[key] = texts.get(key, "") + piece.text
        assert texts == {(p, c): run.completions[p].choices[c].text for p in range(2) for c in range(2)}

    def test_bad_prompts_are_refused_before_anything_runs(self, model: LanguageModel) -> None:
        with pytest.raises(RequestError, match="no prompt"):
            model.run([])
        with pytest.raises(RequestError, match=r"prompts.1. is empty"):
            model.generate([[1], []])
        with pytest.raises(RequestError, match="batch is 0"):
            model.run([[1]], batch=0)
        with pytest.raises(RequestError, match="batch is '8'"):
            model.run([[1]], batch="8")  # type: ignore[arg-type]

    def test_a_prompt_can_be_asked_about_before_anything_runs(self, model: LanguageModel) -> None:
        """Of many prompts, nothing said which one :meth:`run` refused."""
        assert model.prompt_tokens("Hello") == model.tokenizer.encode("Hello")
        assert len(model.prompt_tokens([1] * 249, GenerationSettings(max_tokens=7))) == 249
        with pytest.raises(CapacityError, match="250 tokens and 7 new ones exceed the 256"):
            model.prompt_tokens([1] * 250, GenerationSettings(max_tokens=7))
        with pytest.raises(CapacityError, match="256 tokens leaves no room for a new one in the 256"):
            model.prompt_tokens([1] * 256)
        with pytest.raises(RequestError, match="prompt is empty"):
            model.prompt_tokens("")


class TestSeeds:
    def test_a_seeded_request_is_the_same_in_any_company(self, model: LanguageModel) -> None:
        """A neighbour without a seed, or another order of rows, made a request lose its seed."""
        sampling = Sampling(temperature=1.5, seed=42)
        alone = tokens(model, [PROMPTS[1]], 1, sampling=sampling)[0]
        assert tokens(model, [PROMPTS[1]], 1, sampling=sampling)[0] == alone
        assert tokens(model, PROMPTS, 5, sampling=sampling)[1] == alone
        assert tokens(model, PROMPTS[::-1], 2, sampling=sampling)[3] == alone

    def test_without_a_seed_runs_differ(self, model: LanguageModel) -> None:
        """No seed once meant seed 0, and every answer was the same."""
        sampling = Sampling(temperature=2.0)
        assert len({str(tokens(model, [PROMPTS[0]], 1, sampling=sampling)) for _ in range(4)}) > 1

    def test_the_global_generator_is_left_alone(self, model: LanguageModel) -> None:
        torch.manual_seed(3)
        before = torch.get_rng_state()
        tokens(model, [PROMPTS[0]], 1, sampling=Sampling(temperature=2.0))
        assert torch.equal(torch.get_rng_state(), before)

    def test_choices_differ_and_repeat_together(self, model: LanguageModel) -> None:
        def run(sampling: Sampling) -> list[tuple[int, ...]]:
            settings = GenerationSettings(max_tokens=12, n=3, sampling=sampling)
            return [choice.token_ids for choice in model.generate(PROMPTS[0], settings).choices]

        first = run(Sampling(temperature=1.5, seed=42))
        assert len(set(first)) == 3
        assert run(Sampling(temperature=1.5, seed=42)) == first
        single = GenerationSettings(max_tokens=12, sampling=Sampling(temperature=1.5, seed=42))
        assert model.generate(PROMPTS[0], single).token_ids == first[0]
        assert len(set(run(Sampling()))) == 1

    def test_greedy_needs_no_seed(self, model: LanguageModel) -> None:
        assert tokens(model, [[1]], 1, sampling=Sampling(seed=1)) == tokens(model, [[1]], 1)


class TestEnding:
    def test_a_stop_string_ends_the_text_and_is_left_out(self, model: LanguageModel) -> None:
        free = model.generate("Hello", max_tokens=12)
        stop = free.text[4:7]
        settings = GenerationSettings(max_tokens=12, stop=[stop])
        stopped = model.generate("Hello", settings)
        assert stopped.text == free.text[: free.text.index(stop)]
        assert stopped.finish_reason == "stop"
        assert free.token_ids[: len(stopped.token_ids)] == stopped.token_ids
        assert "".join(model.stream("Hello", settings)) == stopped.text

    def test_ignore_eos_goes_on_and_own_stops_still_hold(self, model: LanguageModel) -> None:
        model = model_with_stop(model, model.generate("Hello", max_tokens=12).token_ids[3])
        assert model.generate("Hello", max_tokens=12).finish_reason == "stop"
        ignoring = model.generate("Hello", GenerationSettings(max_tokens=12, ignore_eos=True))
        assert (len(ignoring.token_ids), ignoring.finish_reason) == (12, "length")
        own = GenerationSettings(max_tokens=12, ignore_eos=True, stop_token_ids=[ignoring.token_ids[6]])
        assert model.generate("Hello", own).finish_reason == "stop"

    def test_no_stop_token_before_min_tokens(self, model: LanguageModel) -> None:
        stop = model.generate("Hello", max_tokens=12).token_ids[0]
        model = model_with_stop(model, stop)
        assert len(model.generate("Hello", max_tokens=12).token_ids) == 1
        settings = GenerationSettings(max_tokens=12, min_tokens=5)
        held = model.generate("Hello", settings).token_ids
        assert len(held) >= 5
        assert stop not in held[:5]
        with pytest.raises(RequestError, match=r"min_tokens is 13.*max_tokens \(12\)"):
            model.generate("Hello", GenerationSettings(max_tokens=12, min_tokens=13))


def model_with_stop(model: LanguageModel, token: int) -> LanguageModel:
    """The same model, whose generation config ends at this token."""
    (model.folder / "generation_config.json").write_text(f'{{"eos_token_id": {token}}}')
    return model.with_options()


class TestLogprobs:
    def test_are_the_models_own(self, model: LanguageModel) -> None:
        """Before penalties, temperature and filters, whatever was chosen by them."""
        sampling = Sampling(temperature=3.0, seed=1, top_k=30, repetition_penalty=2.0)
        settings = GenerationSettings(max_tokens=6, logprobs=3, sampling=sampling)
        choice = model.generate([3, 1], settings).choices[0]
        sequence = [3, 1, *choice.token_ids]
        logprobs = model.forward([sequence])[0].log_softmax(-1)
        assert [entry.token_id for entry in choice.logprobs] == list(choice.token_ids)
        for position, entry in enumerate(choice.logprobs, start=1):
            wanted = logprobs[position]
            assert entry.logprob == pytest.approx(float(wanted[entry.token_id]), abs=1e-9)
            assert [token for token, _ in entry.top] == wanted.topk(3).indices.tolist()
            assert [value for _, value in entry.top] == pytest.approx(wanted.topk(3).values.tolist())

    def test_none_unless_asked_for(self, model: LanguageModel) -> None:
        assert model.generate([1], max_tokens=2).choices[0].logprobs == ()


class TestSharedSession:
    def test_timings_are_of_the_run_alone(self, model: LanguageModel) -> None:
        session = model.session(64)
        for _ in range(3):
            stream = model.stream("Hello", max_tokens=8, session=session)
            assert "".join(stream)
            assert stream.completion is not None
            timings = stream.completion.timings
            parts = timings.prefill_ms + timings.plan_ms + timings.rebind_ms + timings.replay_ms
            assert parts + timings.sample_ms <= timings.total_ms

    def test_its_capacity_is_a_limit_before_anything_runs(self, model: LanguageModel) -> None:
        session = model.session(8)
        with pytest.raises(
            CapacityError, match="5 tokens and 4 new ones exceed the 8 tokens that a row of the session"
        ):
            model.stream("Hello", max_tokens=4, session=session)
        assert len(model.run(["Hello"], session=session).finish()[0].token_ids) == 3

    @pytest.mark.parametrize("meanwhile", ["stream", "step", "truncate"])
    def test_a_run_whose_row_somebody_else_has_changed_ends(
        self, model: LanguageModel, meanwhile: str
    ) -> None:
        """The text went on, fluently, from what the other had left in the row."""
        session = model.session(64)
        stream = model.stream("Hello", max_tokens=20, session=session)
        pieces = iter(stream)
        next(pieces)
        if meanwhile == "stream":
            assert "".join(model.stream("World", max_tokens=3, session=session))
        elif meanwhile == "step":
            session.step([[1]])
        else:
            session.caches[0].truncate(2)
        with pytest.raises(SessionBusy, match="row 0 of the session holds other tokens"):
            list(pieces)
        assert "".join(model.stream("Hello", max_tokens=3, session=session))

    def test_another_models_session_is_refused(
        self, model: LanguageModel, checkpoint: Callable[..., Path]
    ) -> None:
        other = fuel_core.load(checkpoint("mixed-window"), dtype="float64")
        with pytest.raises(RequestError, match="another model's"):
            model.stream("Hello", session=other.session(64))


@pytest.mark.parametrize(
    "settings",
    [
        {"max_tokens": "3"},
        {"stop": [3]},
        {"n": 2.5},
        {"n": 0},
        {"logprobs": -1},
        {"stop_token_ids": [99_999]},
        {"stop_token_ids": ["a"]},
        {"sampling": Sampling(logit_bias={99_999: 1.0})},
        {"stop": 3},
        {"stop_token_ids": 3},
        {"processors": len},
        {"processors": ["len"]},
        {"sampling": {"temperature": 1}},
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused(model: LanguageModel, settings: dict[str, object]) -> None:
    with pytest.raises(RequestError):
        model.generate("Hello", GenerationSettings(**settings))  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [{"max_tokens": 3}, Sampling(), 32, "32"], ids=str)
def test_settings_of_another_type_are_refused(model: LanguageModel, given: Any) -> None:
    """They ended in an AttributeError, or in a TypeError of replace(), and named no argument."""
    for call in (model.generate, model.stream):
        for further in ({}, {"max_tokens": 2}):
            with pytest.raises(RequestError, match=r"settings is .* expected GenerationSettings"):
                call([1, 2], given, **further)
    with pytest.raises(RequestError, match="settings is"):
        model.run([[1, 2]], given)
    with pytest.raises(RequestError, match="settings is"):
        asyncio.run(model.agenerate([1, 2], given))


def test_stop_tokens_may_be_any_collection(model: LanguageModel) -> None:
    first = model.generate([3, 1], max_tokens=1).token_ids[0]
    for ids in ([first], (first,), {first}, frozenset({first})):
        settings = GenerationSettings(max_tokens=4, stop_token_ids=ids)  # type: ignore[arg-type]
        assert model.generate([3, 1], settings).finish_reason == "stop"


def test_prompts_may_be_tensors_and_nothing_else_odd(model: LanguageModel) -> None:
    tensor = torch.tensor([1, 2, 3])
    assert model.generate(tensor, max_tokens=3).token_ids == model.generate([1, 2, 3], max_tokens=3).token_ids  # type: ignore[call-overload]
    for prompt in (None, 3, {"a": 1}):
        with pytest.raises(RequestError, match="text or token ids"):
            model.generate(prompt)  # type: ignore[call-overload]


def test_an_end_token_beyond_the_vocabulary_never_comes(model: LanguageModel) -> None:
    ended = model_with_stop(model, 99_999)
    assert ended.generate("Hello", GenerationSettings(max_tokens=4, min_tokens=2)).token_ids


def test_processors_see_prompt_and_text(model: LanguageModel) -> None:
    seen: list[tuple[list[int], list[int]]] = []

    def only_even(logits: torch.Tensor, prompt: Sequence[int], generated: Sequence[int]) -> torch.Tensor:
        seen.append((list(prompt), list(generated)))
        return logits.index_fill(0, torch.arange(1, len(logits), 2), -torch.inf)

    choice = model.generate([3, 1], GenerationSettings(max_tokens=4, processors=[only_even]))
    assert all(token % 2 == 0 for token in choice.token_ids)
    assert seen[0] == ([3, 1], [])
    assert seen[3] == ([3, 1], list(choice.token_ids[:3]))


@pytest.mark.parametrize(
    ("returned", "named"),
    [
        (lambda logits: None, "returned a NoneType"),
        (lambda logits: logits.tolist(), "returned a list"),
        (lambda logits: logits[None], r"returned a tensor of shape \[1, 96\]"),
        (lambda logits: logits[:5], r"returned a tensor of shape \[5\]"),
        (lambda logits: logits > 0, "torch.bool"),
    ],
    ids=["nothing", "list", "batch", "few", "mask"],
)
def test_a_processor_that_returns_no_logits_is_named(
    model: LanguageModel, returned: Callable[[torch.Tensor], Any], named: str
) -> None:
    """One that changed its input in place and returned None ended in an AttributeError deep in sampling; five
    logits of the vocabulary were sampled from as if they were all."""

    def process(logits: torch.Tensor, prompt: Sequence[int], generated: Sequence[int]) -> Any:
        return returned(logits)

    with pytest.raises(RequestError, match=rf"processor .*process.*{named}"):
        model.generate([3, 1], GenerationSettings(max_tokens=2, processors=[process]))


def test_a_stream_of_several_is_refused(model: LanguageModel) -> None:
    with pytest.raises(RequestError, match="n is 2; iterate over run"):
        model.stream("x", GenerationSettings(n=2))
    with pytest.raises(RequestError, match=r"stop is .x.; expected a list"):
        GenerationSettings(stop="x")


class TestAsync:
    def test_gives_what_the_plain_calls_give(self, model: LanguageModel) -> None:
        async def run() -> tuple[str, str]:
            whole = await model.agenerate("Hello", max_tokens=8)
            return whole.text, "".join([text async for text in model.astream("Hello", max_tokens=8)])

        text = model.generate("Hello", max_tokens=8).text
        assert asyncio.run(run()) == (text, text)

    def test_does_not_block_the_loop_and_stops_when_cancelled(self, model: LanguageModel) -> None:
        """A client that went away left its generation running to the last token."""
        steps: list[int] = []

        def slow(logits: torch.Tensor, prompt: Sequence[int], generated: Sequence[int]) -> torch.Tensor:
            steps.append(len(generated))
            return logits

        async def run() -> int:
            settings = GenerationSettings(max_tokens=200, processors=[slow])
            task = asyncio.create_task(model.agenerate("Hello", settings))
            ticks = 0
            while len(steps) < 5:
                await asyncio.sleep(0.001)
                ticks += 1
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return ticks

        assert asyncio.run(run()) > 0
        assert len(steps) < 100, "the run went on after its consumer was gone"


def test_a_text_that_states_its_begin_itself_is_warned_about(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A templated conversation, sent as plain text, got a second BOS in silence and a worse answer."""
    end = model.tokenizer.encode("<|end|>")[0]
    encode = model.tokenizer.encode
    monkeypatch.setattr(model.tokenizer, "encode", lambda text: [end, *encode(text)])
    model.generate("Hello", max_tokens=1)
    with pytest.warns(fuel_core.FuelWarning, match=f"begins with token {end} twice"):
        model.generate("<|end|>Hello", max_tokens=1)
