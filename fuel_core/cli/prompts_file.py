"""The file of prompts: JSON lines ``{"prompt": "..."}``, whose further keys are carried into the answers."""

import codecs
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuel_core.errors import RequestError
from fuel_core.generate.settings import GenerationSettings
from fuel_core.model import LanguageModel
from fuel_core.text.utf8 import require_utf8


@dataclass(frozen=True, kw_only=True)
class FilePrompt:
    """A line of a file of prompts.

    Attributes:
        place: the file and the line, as errors name them.
        text: what is to be continued.
        further: the line's other keys.
    """

    place: str
    text: str
    further: Mapping[str, Any]

    def token_ids(self, model: LanguageModel, settings: GenerationSettings) -> list[int]:
        """The tokens of the prompt; nothing runs.

        Raises:
            RequestError, CapacityError: the model cannot continue it; the line is named.
        """
        try:
            return model.prompt_tokens(self.text, settings)
        except RequestError as error:
            error.args = (f"{self.place}: {error}",)
            raise


def read_prompts(path: Path) -> list[FilePrompt]:
    """Read a file of prompts; empty lines are passed over, and so is a byte order mark.

    Raises:
        RequestError: the file cannot be read, or a line is something else.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error}") from error
    lines = content.removeprefix(codecs.BOM_UTF8).split(b"\n")  # splitlines would split text at U+2028
    prompts = [
        _read_line(line, f"{path}, line {number}") for number, line in enumerate(lines, 1) if line.strip()
    ]
    if not prompts:
        raise RequestError(f"{path} holds no prompt")
    return prompts


def _read_line(line: bytes, place: str) -> FilePrompt:
    text = require_utf8(line.decode("utf-8", "surrogateescape"), place)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{place} is no JSON: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("prompt"), str):
        raise RequestError(f'{place} is {text[:80]}; {{"prompt": "text"}} is expected')
    prompt = require_utf8(content.pop("prompt"), f"{place}: the prompt")
    if not prompt:
        raise RequestError(f"{place}: the prompt is empty: a continuation needs at least one token")
    return FilePrompt(place=place, text=prompt, further=content)
