"""Which tokens end a generation.

A checkpoint names them in up to three places that often disagree: config.json, generation_config.json
and the tokenizer's files. fuel stops at any of them (transformers heeds generation_config.json alone
and so misses the end of a chat turn in some published checkpoints).
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fuel_core.config.json_file import read_json_object
from fuel_core.errors import ConfigError

GENERATION_CONFIG_FILE = "generation_config.json"


def read_generation_config(folder: Path | str) -> dict[str, Any] | None:
    """Return a folder's generation_config.json, or None where there is none.

    Raises:
        ConfigError: the file exists and is no JSON object.
    """
    path = Path(folder) / GENERATION_CONFIG_FILE
    return read_json_object(path) if path.exists() else None


def stop_token_ids(
    config: Mapping[str, Any],
    generation_config: Mapping[str, Any] | None,
    tokenizer_ids: Iterable[int],
    *,
    folder: Path,
) -> frozenset[int]:
    """Return the union of the end-of-sequence ids of config.json, generation_config.json and the tokenizer.

    Empty when nobody names one: generation then runs to its token limit. ``folder`` is that of both files.

    Raises:
        ConfigError: an ``eos_token_id`` is neither an id, nor a list of ids, nor null.
    """
    return frozenset(tokenizer_ids).union(
        _eos_token_ids(config, folder / "config.json"),
        _eos_token_ids(generation_config or {}, folder / GENERATION_CONFIG_FILE),
    )


def _eos_token_ids(config: Mapping[str, Any], path: Path) -> list[int]:
    value = config.get("eos_token_id")
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(type(token_id) is int and token_id >= 0 for token_id in ids):
        raise ConfigError(
            f"{path}: eos_token_id is {value!r}; expected a token id, a list of token ids, or null"
        )
    return ids
