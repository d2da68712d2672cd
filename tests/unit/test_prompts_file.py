"""``fuel run --input``: answers in order, and going on where an earlier run stopped."""

import fcntl
import json
import math
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fuel_core.cli.answers_file import answer_heads, answer_line, appended, held_answers
from fuel_core.cli.app import app
from fuel_core.cli.prompts_file import FilePrompt
from fuel_core.decode import Counters
from fuel_core.errors import RequestError
from fuel_core.generate.completion import Choice, Completion, Timings

TIMINGS = Timings(**{field.name: 0.0 for field in fields(Timings)})
PROMPTS = ["Hello", "a", "In the beginning", "xyz", "Hello"]


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": text, "id": 7}) + "\n" for text in PROMPTS) + "\n")
    return path


def fuel(folder: Path, prompts: Path, answers: Path, *more: str) -> tuple[int, str]:
    arguments = ["run", str(folder), "--input", str(prompts), "--output", str(answers)]
    result = CliRunner().invoke(app, [*arguments, "--max-tokens", "6", "--batch", "2", *more])
    return result.exit_code, " ".join(result.stderr.split())


def test_answers_are_in_the_order_of_the_prompts(checkpoint: Callable[..., Path], prompts: Path) -> None:
    answers = prompts.with_name("answers.jsonl")
    assert fuel(checkpoint(), prompts, answers)[0] == 0
    lines = [json.loads(line) for line in answers.read_text().splitlines()]
    assert [line["prompt"] for line in lines] == PROMPTS
    assert lines[0] == lines[4]
    assert all(len(line["token_ids"]) == 6 and line["finish_reason"] == "length" for line in lines)


def test_goes_on_where_it_stopped(checkpoint: Callable[..., Path], prompts: Path) -> None:
    """A cut leaves whole lines and perhaps a half one; the half one is done again, the others are not."""
    folder, answers = checkpoint(), prompts.with_name("answers.jsonl")
    fuel(folder, prompts, answers)
    whole = answers.read_text()
    lines = whole.splitlines(keepends=True)
    marked = lines[0].replace('"finish_reason": "length"', '"finish_reason": "kept"')
    answers.write_text(marked + lines[1] + lines[2][:20])
    assert fuel(folder, prompts, answers)[0] == 0
    assert answers.read_text() == marked + "".join(lines[1:])
    assert fuel(folder, prompts, answers)[0] == 0
    assert answers.read_text() == marked + "".join(lines[1:])


def test_a_folder_that_is_not_there_is_said_before_anything_is_loaded(prompts: Path) -> None:
    status, err = fuel(prompts / "no-such-model", prompts, prompts.with_name("no") / "answers.jsonl")
    assert status == 1
    assert f"there is no folder {prompts.with_name('no')}; make it first" in err


def test_two_runs_do_not_write_to_one_file(checkpoint: Callable[..., Path], prompts: Path) -> None:
    """Their lines lay one between the other, and neither could go on."""
    answers = prompts.with_name("answers.jsonl")
    with answers.open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        status, err = fuel(checkpoint(), prompts, answers)
    assert (status, answers.read_bytes()) == (1, b"")
    assert "another run is writing to" in err


def test_answers_of_other_prompts_are_not_added_to(checkpoint: Callable[..., Path], prompts: Path) -> None:
    answers = prompts.with_name("answers.jsonl")
    answers.write_text(json.dumps({"prompt": "another", "text": "", "fuel": {}}) + "\n")
    status, err = fuel(checkpoint(), prompts, answers)
    assert status == 1
    assert "line 1 does not answer prompt 1" in err


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("{no json\n", "line 1 is no JSON"),
        ('{"text": 3}\n', '{"prompt": "text"} is expected'),
        ('{"prompt": "a"}\n\n{"prompt": ""}\n', "prompts.jsonl, line 3: the prompt is empty"),
        (
            '{"prompt": "a"}\n{"prompt": "%s"}\n' % ("x" * 300),
            "line 2: a prompt of 300 tokens leaves no",
        ),
        ('{"prompt": "\\ud800"}\n', "line 1: the prompt is not UTF-8: the lone surrogate U+D800"),
        ('{"prompt": "a", "text": "b"}\n', "line 1 has the key 'text', which its answer needs"),
        pytest.param("[" * 100_000, "line 1 is no JSON", id="too deep"),
        ("", "no prompt"),
    ],
)
def test_lines_that_are_no_prompts(
    checkpoint: Callable[..., Path], prompts: Path, content: str, named: str
) -> None:
    """A prompt that is empty or too long was refused without its line."""
    prompts.write_text(content)
    answers = prompts.with_name("answers.jsonl")
    status, err = fuel(checkpoint(), prompts, answers)
    assert (status, named in err) == (1, True), err
    assert not answers.exists(), "nothing has run"


def test_prompts_that_are_no_utf8_name_the_byte(checkpoint: Callable[..., Path], prompts: Path) -> None:
    prompts.write_bytes(b'{"prompt": "a"}\n{"prompt": "\xe9"}\n')
    status, err = fuel(checkpoint(), prompts, prompts.with_name("answers.jsonl"))
    assert (status, "line 2 is not UTF-8: byte 0xe9 at character 13" in err) == (1, True), err


def test_a_byte_order_mark_is_no_prompt(checkpoint: Callable[..., Path], prompts: Path) -> None:
    """Editors on Windows write one; the first line was refused as no JSON."""
    prompts.write_bytes(b"\xef\xbb\xbf" + prompts.read_bytes())
    assert fuel(checkpoint(), prompts, prompts.with_name("answers.jsonl"))[0] == 0


def test_input_and_output_go_together(checkpoint: Callable[..., Path], prompts: Path) -> None:
    result = CliRunner().invoke(app, ["run", str(checkpoint()), "--input", str(prompts)])
    assert result.exit_code == 2
    result = CliRunner().invoke(app, ["run", str(checkpoint()), "text", "--input", str(prompts)])
    assert result.exit_code == 2


def test_separators_within_a_text_are_text(checkpoint: Callable[..., Path], prompts: Path) -> None:
    """U+2028 and its like end no line of JSON; splitting there broke prompts and resuming alike."""
    text = "one\u2028two\u0085three"
    prompts.write_text(json.dumps({"prompt": text}, ensure_ascii=False) + "\n")
    folder, answers = checkpoint(), prompts.with_name("answers.jsonl")
    for _ in range(2):
        assert fuel(folder, prompts, answers)[0] == 0
    (line,) = answers.read_text().split("\n")[:-1]
    assert json.loads(line)["prompt"] == text


def test_an_output_that_cannot_be_written_is_one_message(
    checkpoint: Callable[..., Path], prompts: Path
) -> None:
    status, err = fuel(checkpoint(), prompts, prompts.parent / "absent" / "answers.jsonl")
    assert (status, "there is no folder" in err, "Traceback" in err) == (1, True, False), err


def test_choices_without_an_effect_are_refused(checkpoint: Callable[..., Path], prompts: Path) -> None:
    folder = str(checkpoint())
    for arguments in (["Hello", "--logprobs", "2"], ["--input", str(prompts), "--output", "x", "--json"]):
        assert CliRunner().invoke(app, ["run", folder, *arguments]).exit_code == 2


@pytest.mark.parametrize(
    "content",
    [
        b"my notes",
        b"my notes\n",
        b"\xff\xfebinary\n",
        b"\xff\xfebinary",
        b"[1, 2]\n",
        b'{"prompt": "Hello"}',
        b'{"prompt": "Hello"}\n',
        b'{"prompt": "Hello", "text": "of another tool"}\n',
        b'{"prompt": "Hello", "text": "likewise", "fuel": "x"}\n',
        b"\n",
        pytest.param(b"[" * 100_000 + b"\n", id="too deep"),
    ],
)
def test_a_file_of_something_else_is_left_as_it_is(
    checkpoint: Callable[..., Path], prompts: Path, content: bytes
) -> None:
    """A last line without a newline was cut off before the file was looked at: notes were lost."""
    notes = prompts.with_name("notes.txt")
    notes.write_bytes(content)
    status, err = fuel(checkpoint(), prompts, notes)
    assert (status, err.endswith("name another --output")) == (1, True), err
    assert notes.read_bytes() == content


@pytest.mark.parametrize("more", [b"my notes", b"my notes\n", b'{"prompt": "xyz"'])
def test_what_follows_answers_is_left_as_it_is(
    checkpoint: Callable[..., Path], prompts: Path, more: bytes
) -> None:
    folder, answers = checkpoint(), prompts.with_name("answers.jsonl")
    fuel(folder, prompts, answers)
    for content in (answers.read_bytes().split(b"\n")[0] + b"\n" + more, answers.read_bytes() + more):
        answers.write_bytes(content)
        assert fuel(folder, prompts, answers)[0] == 1
        assert answers.read_bytes() == content


def test_a_cut_anywhere_in_an_answer_is_found(tmp_path: Path) -> None:
    """Within a character and within a key too; the whole answers before it stay."""
    prompts = [FilePrompt(place=f"line {n}", text=f"p{n}", further={"name": "\u00e9\ud800"}) for n in (1, 2)]
    heads = answer_heads(prompts, {"model": "m", "temperature": 0.5})
    choice = Choice(text="\u00e9\n", token_ids=(1, 2), finish_reason="stop")
    completion = Completion(choices=(choice,), prompt_token_ids=(1,), timings=TIMINGS, counters=Counters())
    first, second = (answer_line(head, completion, logprobs=False) for head in heads)
    answers = tmp_path / "answers.jsonl"
    for cut in range(len(second)):
        answers.write_bytes(first + second[:cut])
        held = held_answers(answers, heads)
        assert (held.count, held.answers_bytes, held.file_bytes) == (1, len(first), len(first) + cut)
    with appended(answers, held) as file:
        file.write(second)
    assert answers.read_bytes() == first + second
    with pytest.raises(RequestError, match="was changed meanwhile"), appended(answers, held):
        pass
    assert answers.read_bytes() == first + second
    assert held_answers(answers, heads).count == 2


def test_one_file_cannot_be_both(
    checkpoint: Callable[..., Path], prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under another name too: answers were appended to the prompts, which nobody could read then."""
    monkeypatch.chdir(prompts.parent)
    content, folder = prompts.read_bytes(), checkpoint()
    (soft := prompts.with_name("soft.jsonl")).symlink_to(prompts)
    (hard := prompts.with_name("hard.jsonl")).hardlink_to(prompts)
    for answers in (prompts, Path(prompts.name), folder / ".." / prompts.name, soft, hard):
        status, err = fuel(folder, prompts, answers)
        assert (status, "are one file" in err) == (1, True), err
        assert prompts.read_bytes() == content


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--max-tokens", "7"], "max_tokens was 6 and is 7"),
        (["--temperature", "2", "--seed", "3"], "temperature was not given and is 2.0; seed was not given"),
        (["--stop", "e"], 'stop was not given and is ["e"]'),
        (["--logprobs", "0"], "logprobs was not given and is 0"),
        (["--dtype", "float64"], 'dtype was not given and is "float64"'),
        (["--option", "window_layers=last"], 'options was not given and is {"window_layers": "last"}'),
    ],
)
def test_answers_of_other_settings_are_not_added_to(
    checkpoint: Callable[..., Path], prompts: Path, options: list[str], named: str
) -> None:
    """Going on with other settings gave one file of two kinds of answers, and said nothing."""
    folder, answers = checkpoint(), prompts.with_name("answers.jsonl")
    fuel(folder, prompts, answers)
    content = b"".join(answers.read_bytes().splitlines(keepends=True)[:2])
    answers.write_bytes(content)
    status, err = fuel(folder, prompts, answers, *options)
    assert (status, named in err) == (1, True), err
    assert "name another --output, or remove this file" in err
    assert answers.read_bytes() == content
    assert fuel(folder, prompts, answers, "--batch", "1", "--backend", "eager", "--device", "cpu")[0] == 0


def test_answers_of_another_model_are_not_added_to(checkpoint: Callable[..., Path], prompts: Path) -> None:
    """Answers of two models stood in one file, and nothing said which was whose."""
    folder, other, answers = checkpoint(), checkpoint("tied"), prompts.with_name("answers.jsonl")
    fuel(folder, prompts, answers)
    status, err = fuel(other, prompts, answers)
    assert (status, f'model was "{folder}" and is "{other}"' in err) == (1, True), err


def test_what_comes_with_a_prompt_goes_with_its_answer(
    checkpoint: Callable[..., Path], prompts: Path
) -> None:
    """The ``id`` of a prompt was dropped, so that an answer could be found by its place alone."""
    prompts.write_text(
        '{"id": 7, "prompt": "Hello", "tags": {"x": "\\u00e9", "y": null}}\n{"prompt": "a", "id": NaN}\n'
    )
    folder, answers = checkpoint(), prompts.with_name("answers.jsonl")
    assert fuel(folder, prompts, answers)[0] == 0
    first, second = (json.loads(line) for line in answers.read_text().splitlines())
    assert (first["id"], first["prompt"], first["tags"]) == (7, "Hello", {"x": "\u00e9", "y": None})
    assert math.isnan(second["id"])
    assert first["fuel"] == {"model": str(folder), "max_tokens": 6}
    prompts.write_text(prompts.read_text().replace('"x": "\\u00e9", "y": null', '"y": null, "x": "\u00e9"'))
    assert fuel(folder, prompts, answers)[0] == 0
    prompts.write_text(prompts.read_text().replace('"id": 7', '"id": true'))
    status, err = fuel(folder, prompts, answers)
    assert (status, "id was 7 and is true" in err) == (1, True), err


def test_the_end_says_what_was_done(checkpoint: Callable[..., Path], prompts: Path) -> None:
    """A run that found every answer there ended without a word, after loading the model."""
    folder, answers = checkpoint(), prompts.with_name("answers.jsonl")
    assert fuel(folder, prompts, answers)[1] == "[5 prompts answered now, 0 were there]"
    answers.write_bytes(b"".join(answers.read_bytes().splitlines(keepends=True)[:2]))
    assert fuel(folder, prompts, answers)[1] == "[3 prompts answered now, 2 were there]"
    (folder / "model.safetensors").unlink()
    assert fuel(folder, prompts, answers) == (0, "[0 prompts answered now, 5 were there]")


def test_answers_may_hold_log_probabilities(checkpoint: Callable[..., Path], prompts: Path) -> None:
    """They were to be had with --json alone, which --input refuses."""
    folder, answers = checkpoint(), prompts.with_name("answers.jsonl")
    assert fuel(folder, prompts, answers, "--logprobs", "2", "--n", "2")[0] == 0
    arguments = ["run", str(folder), "Hello", "--max-tokens", "6", "--logprobs", "2", "--json"]
    single = json.loads(CliRunner().invoke(app, arguments).stdout)
    answer = json.loads(answers.read_text().splitlines()[0])
    for place in (answer, *answer["choices"]):
        assert place["token_ids"] == single["token_ids"]
        assert [[known["token_id"] for known in place["logprobs"]]] == [place["token_ids"]]
        assert [len(known["top"]) for known in place["logprobs"]] == [2] * 6
