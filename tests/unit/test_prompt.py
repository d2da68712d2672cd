"""What may be given as a prompt, and that whatever may not is refused before anything runs."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fuel_core
from fuel_core import LanguageModel
from fuel_core.errors import RequestError
from fuel_core.generate.prompt import as_prompts, read_prompts

IDS = [5, 9, 2]
ONE_PROMPT: dict[str, Any] = {
    "list": IDS,
    "tuple": tuple(IDS),
    "range": range(3),
    "tensor": torch.tensor(IDS),
    "int32 tensor": torch.tensor(IDS, dtype=torch.int32),
    "array": np.array(IDS),
    "uint16 array": np.array(IDS, dtype=np.uint16),
    "numpy integers": [np.int64(token) for token in IDS],
    "0-D tensors": list(torch.tensor(IDS)),
    "mixed": [5, np.int32(9), torch.tensor(2)],
}


@pytest.fixture
def model(checkpoint: Callable[..., Path]) -> LanguageModel:
    return fuel_core.load(checkpoint("mixed-window"), dtype="float64")


@pytest.mark.parametrize("form", ONE_PROMPT)
def test_ids_are_read_in_every_plain_form(form: str) -> None:
    """Ids that were no Python integers were looked up in the vocabulary as the objects that they are."""
    prompt = ONE_PROMPT[form]
    wanted = [0, 1, 2] if form == "range" else IDS
    prompts, single = as_prompts(prompt)
    assert single
    assert read_prompts(prompts) == [wanted]
    (read,) = read_prompts([prompt])
    assert read == wanted
    assert {type(token) for token in read} == {int}


@pytest.mark.parametrize(
    "prompts",
    [
        [[1, 2], [3, 4]],
        torch.tensor([[1, 2], [3, 4]]),
        np.array([[1, 2], [3, 4]]),
        [torch.tensor([1, 2]), np.array([3, 4])],
    ],
    ids=["lists", "tensor", "array", "rows"],
)
def test_rows_of_ids_are_several_prompts(prompts: Any) -> None:
    listed, single = as_prompts(prompts)
    assert not single
    assert read_prompts(listed) == read_prompts(prompts) == [[1, 2], [3, 4]]


def test_every_entry_takes_the_same_forms(model: LanguageModel) -> None:
    wanted = model.generate(IDS, max_tokens=4)
    settings = fuel_core.GenerationSettings(max_tokens=4)
    for prompt in (torch.tensor(IDS), np.array(IDS), [np.int64(token) for token in IDS]):
        stream = model.stream(prompt, settings)
        assert "".join(stream) == wanted.text
        assert model.generate(prompt, settings).token_ids == wanted.token_ids
        assert model.run([prompt], settings).finish()[0].token_ids == wanted.token_ids
        assert asyncio.run(model.agenerate(prompt, settings)).token_ids == wanted.token_ids
        assert stream.completion is not None
        assert stream.completion.prompt_token_ids == tuple(IDS)


@pytest.mark.parametrize(
    ("prompt", "named"),
    [
        (b"text", r"b'text' \(bytes\).*decode bytes first"),
        (bytearray(b"text"), "bytearray.*decode bytes first"),
        (memoryview(b"text"), "memoryview.*decode bytes first"),
        ([b"text", "text"], r"prompts\[0\] is b'text' \(bytes\).*decode bytes first"),
        ([1.0, 2.0], r"the prompt holds 1\.0 \(float\)"),
        ([1, True], r"the prompt holds True \(bool\)"),
        ([1, None], r"the prompt holds None \(NoneType\)"),
        ([[1], [2, [3]]], r"prompts\[1\] holds \[3\] \(list\)"),
        ([[1], 2], r"prompts\[1\] is 2 \(int\)"),
        ([1, torch.tensor(2.0)], r"the prompt holds token ids of dtype torch\.float32"),
        ([np.bool_(True)], "the prompt holds token ids of dtype bool"),
        (torch.tensor([1.0, 2.0]), r"dtype torch\.float32"),
        (torch.tensor([True, False]), r"dtype torch\.bool"),
        ([[1], np.array([1.5])], r"prompts\[1\] holds token ids of dtype float64"),
        (torch.tensor(3), r"text or token ids, or a list"),
        (None, r"None \(NoneType\)"),
        ({"input_ids": [1]}, r"\(dict\)"),
        ({1, 2}, r"\(set\)"),
    ],
    ids=str,
)
def test_what_is_no_prompt_is_refused_by_its_type(model: LanguageModel, prompt: Any, named: str) -> None:
    """Bytes ran as the ids of their numbers; a float or a tensor was a TypeError, or an id "outside of the
    vocabulary" that lay in it."""
    with pytest.raises(RequestError, match=named):
        model.generate(prompt, max_tokens=2)


@pytest.mark.parametrize(
    "prompts", ["text", b"text", 3, None, torch.tensor(1), {"a": 1}, iter([[1]])], ids=str
)
def test_a_run_takes_a_list(model: LanguageModel, prompts: Any) -> None:
    """A text given to run() was one prompt for each of its characters."""
    with pytest.raises(RequestError, match=r"prompts is .*; a list of prompts is expected"):
        model.run(prompts)


@pytest.mark.parametrize("prompts", [[], (), torch.zeros(0, 3, dtype=torch.int64)], ids=str)
def test_no_prompt_is_an_error(model: LanguageModel, prompts: Any) -> None:
    with pytest.raises(RequestError, match="no prompt to continue"):
        model.run(prompts)


@pytest.mark.parametrize(
    ("prompts", "named"),
    [
        ([[1], [2, 96, 97]], r"prompts\[1\] holds token id 96,.* vocabulary of 96"),
        ([[1, -1], [2]], r"prompts\[0\] holds token id -1,"),
        ([torch.tensor([96])], "the prompt holds token id 96,"),
    ],
)
def test_an_id_out_of_the_vocabulary_is_found_before_anything_runs(
    model: LanguageModel, prompts: Any, named: str
) -> None:
    """It was found when its turn came, after the prompts before it had run, and nobody said whose it was."""
    session = model.session(32, batch=1)
    with pytest.raises(RequestError, match=named):
        model.run(prompts, session=session)
    with pytest.raises(RequestError, match=named):
        model.run(prompts)
    assert session.caches[0].length == 0


def test_an_empty_prompt_is_named(model: LanguageModel) -> None:
    with pytest.raises(RequestError, match=r"prompts\[1\] is empty"):
        model.run([[1], torch.tensor([], dtype=torch.int64)])
