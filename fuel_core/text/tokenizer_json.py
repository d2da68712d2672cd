"""Reading the JSON files of a tokenizer."""

from pathlib import Path
from typing import Any

from fuel_core.config.json_file import read_json_object
from fuel_core.errors import ConfigError, TokenizerError


def read_if_present(path: Path) -> dict[str, Any]:
    """Read a file that holds one JSON object; nothing where there is no file.

    Raises:
        TokenizerError: the file is there and is no such thing.
    """
    if not path.exists():
        return {}
    try:
        return read_json_object(path)
    except ConfigError as error:
        raise TokenizerError(str(error)) from error
