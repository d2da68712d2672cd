"""The file of answers: JSON lines in the order of the prompts. An answer holds the keys of its prompt, what
model and settings answered it (``"fuel"``), and what was generated.

A file of something else is never changed.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

from fuel_core.cli.prompts_file import FilePrompt
from fuel_core.errors import RequestError
from fuel_core.generate.completion import Completion

STATEMENT = "fuel"
"""The key of what answered a prompt."""

_GENERATED = frozenset({"text", "token_ids", "finish_reason", "logprobs", "choices"})

_REMEDY = "name another --output, or remove this file"  # said of answers, never of a file of something else

Head = dict[str, Any]
"""What an answer begins with: it is known before anything is generated."""


def answer_heads(prompts: Sequence[FilePrompt], statement: Mapping[str, Any]) -> list[Head]:
    """The heads of the answers that ``statement`` gives to these prompts.

    Raises:
        RequestError: a prompt has a key that its answer needs.
    """
    for prompt in prompts:
        taken = sorted(prompt.further.keys() & {STATEMENT, *_GENERATED})
        if taken:
            raise RequestError(f"{prompt.place} has the key {taken[0]!r}, which its answer needs; rename it")
    return [{"prompt": prompt.text, **prompt.further, STATEMENT: dict(statement)} for prompt in prompts]


def answer_line(head: Head, completion: Completion, *, logprobs: bool) -> bytes:
    """A line of the file."""
    choices = [asdict(choice) for choice in completion.choices]
    if not logprobs:
        for choice in choices:
            del choice["logprobs"]
    return _json({**head, **choices[0], **({"choices": choices} if len(choices) > 1 else {})}) + b"\n"


@dataclass(frozen=True, kw_only=True)
class HeldAnswers:
    """What a file of answers holds.

    Attributes:
        count: whole answers.
        answers_bytes: the part of the file that they fill.
        file_bytes: all of it; the rest is the beginning of an answer that was cut while it was written.
    """

    count: int = 0
    answers_bytes: int = 0
    file_bytes: int = 0


def held_answers(path: Path, heads: Sequence[Head]) -> HeldAnswers:
    """Read which of the answers a file holds already.

    Raises:
        RequestError: it holds anything but the first of these answers, and perhaps the beginning of the next.
    """
    if not path.parent.is_dir():
        raise RequestError(f"{path} cannot be written: there is no folder {path.parent}; make it first")
    if not path.is_file():
        return HeldAnswers()  # absent, or a stream such as /dev/stdout
    content = path.read_bytes()
    *lines, rest = content.split(b"\n")
    for number, line in enumerate(lines):
        if number >= len(heads):
            raise RequestError(f"{path} has {len(lines)} lines for {len(heads)} prompts; {_REMEDY}")
        _check_answer(line, heads[number], path, number + 1)
    if rest:
        begun = _json(heads[len(lines)])[:-1] if len(lines) < len(heads) else b""
        if not begun or not (begun.startswith(rest) or rest.startswith(begun)):
            raise _no_answer(rest, f"{path}, line {len(lines) + 1}")
    return HeldAnswers(count=len(lines), answers_bytes=len(content) - len(rest), file_bytes=len(content))


@contextmanager
def appended(path: Path, held: HeldAnswers) -> Iterator[BinaryIO]:
    """The file, open for further answers; one that was cut is taken off.

    Raises:
        RequestError: the file is no longer what ``held`` says.
    """
    with path.open("ab") as file:
        if path.is_file():
            _lock(file, path)
            if file.tell() != held.file_bytes:
                raise RequestError(f"{path} was changed meanwhile, perhaps by another run; start again")
            file.truncate(held.answers_bytes)
        yield file


def _lock(file: BinaryIO, path: Path) -> None:
    """Keep other runs away until the file is closed, where the system can."""
    if fcntl is None:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise RequestError(
            f"another run is writing to {path}; wait for it, or name another --output"
        ) from error


def _check_answer(line: bytes, head: Head, path: Path, number: int) -> None:
    place = f"{path}, line {number}"
    try:
        content = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        content = None
    ours = isinstance(content, dict) and {"prompt", "text", STATEMENT} <= content.keys()
    if not ours or not isinstance(content[STATEMENT], dict):
        raise _no_answer(line, place)
    if content["prompt"] != head["prompt"]:
        raise RequestError(
            f"{place} does not answer prompt {number}; to go on, answers must be of the same prompts in the "
            f"same order: {_REMEDY}"
        )
    was = {key: value for key, value in content.items() if key not in _GENERATED}
    changes = _changes(was.pop(STATEMENT), head[STATEMENT])
    changes += _changes(was, {key: value for key, value in head.items() if key != STATEMENT})
    if changes:
        raise RequestError(
            f"{place} was asked for otherwise: {'; '.join(changes)}. To change that, {_REMEDY}"
        )


def _changes(was: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The keys whose values differ, compared as JSON: there 1 is not true, and NaN is itself."""

    def shown(values: Mapping[str, Any], key: str) -> str:
        return json.dumps(values[key], sort_keys=True) if key in values else "not given"

    pairs = {key: (shown(was, key), shown(now, key)) for key in {**was, **now}}
    return [f"{key} was {old} and is {new}" for key, (old, new) in pairs.items() if old != new]


def _no_answer(line: bytes, place: str) -> RequestError:
    shown = line[:60].decode("utf-8", "replace")
    return RequestError(
        f"{place} is no answer of fuel run: {shown!r}. The file was left as it is; name another --output"
    )


def _json(value: Mapping[str, Any]) -> bytes:
    # what UTF-8 cannot express is a surrogate of a further key; backslashreplace spells it as JSON does
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace")
