"""Reading a JSON object without the leniencies of Python's parser."""

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any, NoReturn

from fuel_core.errors import ConfigError


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a file that holds one JSON object.

    Raises:
        ConfigError: the file cannot be read, is no JSON object, holds NaN, Infinity or a number
            that Python would round to it, or states one key twice (Python would keep the last and
            say nothing).
    """

    def refuse_constant(text: str) -> NoReturn:
        raise ConfigError(f"{path} holds {text}, which is no JSON value")

    def finite(text: str) -> float:
        value = float(text)
        if not math.isfinite(value):
            raise ConfigError(f"{path} holds {text}, which no floating-point number can hold")
        return value

    def refuse_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) != len(pairs):
            times = Counter(key for key, _ in pairs)
            repeated = sorted(key for key, count in times.items() if count > 1)
            raise ConfigError(f"{path} states {', '.join(repeated)} more than once; keep one of them")
        return values

    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    try:
        value = json.loads(
            text, parse_constant=refuse_constant, parse_float=finite, object_pairs_hook=refuse_repeats
        )
    except RecursionError as error:
        raise ConfigError(f"{path} nests too deeply to be read") from error
    except ValueError as error:  # no JSON, or a whole number of more digits than Python converts
        raise ConfigError(f"{path} is no valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} holds a JSON {type(value).__name__}; an object is expected")
    return value
