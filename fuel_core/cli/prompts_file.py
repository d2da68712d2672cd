"""A file of prompts in, a file of answers out, going on where an earlier run stopped."""

import json
from collections.abc import Sequence
from pathlib import Path

from fuel_core.cli.progress import counting_bar
from fuel_core.errors import RequestError
from fuel_core.generate.completion import Completion
from fuel_core.generate.settings import GenerationSettings
from fuel_core.model import LanguageModel


def continue_file(
    model: LanguageModel,
    prompts_path: Path,
    answers_path: Path,
    settings: GenerationSettings,
    *,
    batch: int,
    backend: str | None,
    strict: bool,
) -> None:
    """Append the answer of each prompt that has none yet, in the order of the prompts.

    Raises:
        RequestError: a line that is no prompt, or answers that are not of these prompts.
    """
    prompts = read_prompts(prompts_path)
    answered = _answered(answers_path, prompts)
    rest = prompts[answered:]
    if not rest:
        return
    run = model.run(rest, settings, batch=batch, backend=backend, strict=strict)
    written = 0
    with (
        counting_bar("answering", len(rest)) as one_done,
        answers_path.open("a", encoding="utf-8") as answers,
    ):
        for _ in run:
            while written in run.completions:  # a later prompt may be done before an earlier one
                answers.write(_line(rest[written], run.completions[written]))
                answers.flush()
                written += 1
                one_done()


def read_prompts(path: Path) -> list[str]:
    """Read a file of lines ``{"prompt": "..."}``; further keys are passed over, empty lines too.

    Raises:
        RequestError: the file cannot be read, or a line is something else.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # splitlines would split text at U+2028
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{path} cannot be read: {error}") from error
    prompts = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            content = json.loads(line)
        except json.JSONDecodeError as error:
            raise RequestError(f"{path}, line {number} is no JSON: {error}") from error
        if not isinstance(content, dict) or not isinstance(content.get("prompt"), str):
            raise RequestError(f'{path}, line {number} is {line[:80]}; {{"prompt": "text"}} is expected')
        prompts.append(content["prompt"])
    if not prompts:
        raise RequestError(f"{path} holds no prompt")
    return prompts


def _answered(path: Path, prompts: Sequence[str]) -> int:
    """How many prompts are answered already; a line that a cut left half-written is removed."""
    if not path.is_file():
        return 0  # absent, or a stream such as /dev/stdout
    text = path.read_text(encoding="utf-8")
    whole, newline, cut = text.rpartition("\n")
    if cut:
        path.write_text(whole + newline, encoding="utf-8")
    lines = whole.split("\n") if whole else []
    for number, line in enumerate(lines):
        try:
            answered = json.loads(line)["prompt"]
        except (json.JSONDecodeError, TypeError, KeyError):
            answered = None
        if number >= len(prompts) or answered != prompts[number]:
            raise RequestError(
                f"{path}, line {number + 1} does not answer prompt {number + 1}; to go on, answers must be "
                "of the same prompts in the same order: name another file, or remove this one"
            )
    return len(lines)


def _line(prompt: str, completion: Completion) -> str:
    choices = [
        {"text": choice.text, "token_ids": choice.token_ids, "finish_reason": choice.finish_reason}
        for choice in completion.choices
    ]
    answer = {"prompt": prompt, **choices[0]}
    if len(choices) > 1:
        answer["choices"] = choices
    return json.dumps(answer, ensure_ascii=False) + "\n"
