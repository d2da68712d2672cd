"""``fuel run --input``: answers in order, and going on where an earlier run stopped."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fuel_core.cli.app import app

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


def test_answers_of_other_prompts_are_not_added_to(checkpoint: Callable[..., Path], prompts: Path) -> None:
    answers = prompts.with_name("answers.jsonl")
    answers.write_text(json.dumps({"prompt": "another"}) + "\n")
    status, err = fuel(checkpoint(), prompts, answers)
    assert status == 1
    assert "line 1 does not answer prompt 1" in err


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("{no json\n", "line 1 is no JSON"),
        ('{"text": 3}\n', '{"prompt": "text"} is expected'),
        ("", "no prompt"),
    ],
)
def test_lines_that_are_no_prompts(
    checkpoint: Callable[..., Path], prompts: Path, content: str, named: str
) -> None:
    prompts.write_text(content)
    status, err = fuel(checkpoint(), prompts, prompts.with_name("answers.jsonl"))
    assert (status, named in err) == (1, True), err


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
    assert (status, "No such file" in err, "Traceback" in err) == (1, True, False), err


def test_choices_without_an_effect_are_refused(checkpoint: Callable[..., Path], prompts: Path) -> None:
    folder = str(checkpoint())
    for arguments in (["Hello", "--logprobs", "2"], ["--input", str(prompts), "--output", "x", "--json"]):
        assert CliRunner().invoke(app, ["run", folder, *arguments]).exit_code == 2
