"""Prompts as callers give them: text, or token ids in any form that says plainly which ones."""

from collections.abc import Sequence
from typing import Any, SupportsIndex

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fuel_core.errors import RequestError

Prompt = str | Sequence[SupportsIndex] | Tensor | NDArray[np.integer[Any]]
"""Text; or token ids: a sequence of whole numbers, or a 1-D tensor or array of an integer dtype."""

# Sequences of whole numbers, none of which is a token id.
_BYTES = (bytes, bytearray, memoryview)


def as_prompts(given: object) -> tuple[Sequence[Any], bool]:
    """The prompts, and whether it was a single one: text, or a sequence that holds no other.

    Raises:
        RequestError: neither a prompt nor a sequence of them.
    """
    if isinstance(given, (str, *_BYTES)):
        return [given], True
    listed = _plain(given, "the prompt")
    if not isinstance(listed, Sequence):
        raise RequestError(f"a prompt is text or token ids, or a list of such; got {_shown(given)}")
    several = any(_is_prompt(part) for part in listed)
    return (listed, False) if several else ([listed], True)


def read_prompts(given: object) -> list[str | list[int]]:
    """Each prompt as text or as a list of ids.

    Raises:
        RequestError: no list of prompts, no prompt in it, or one that is neither text nor token ids.
    """
    listed = _plain(given, "prompts")
    if not isinstance(listed, Sequence) or isinstance(listed, (str, *_BYTES)):
        raise RequestError(f"prompts is {_shown(given)}; a list of prompts is expected, even of a single one")
    if not listed:
        raise RequestError("there is no prompt to continue")
    return [_read(prompt, place_of(place, len(listed))) for place, prompt in enumerate(listed)]


def check_token_ids(prompts: Sequence[Sequence[int]], vocab_size: int) -> None:
    """Refuse an id that the model does not have.

    Raises:
        RequestError: it, and the prompt that holds it.
    """
    for place, ids in enumerate(prompts):
        if ids and (min(ids) < 0 or max(ids) >= vocab_size):
            wrong = next(token for token in ids if not 0 <= token < vocab_size)
            raise RequestError(
                f"{place_of(place, len(prompts))} holds token id {wrong}, which is outside of the vocabulary "
                f"of {vocab_size}"
            )


def place_of(place: int, prompts: int) -> str:
    """What a message calls one of so many prompts."""
    return "the prompt" if prompts == 1 else f"prompts[{place}]"


def _read(prompt: object, what: str) -> str | list[int]:
    if isinstance(prompt, _BYTES):
        raise RequestError(
            f"{what} is {_shown(prompt)}; a prompt is text or token ids: decode bytes first, as by .decode()"
        )
    if isinstance(prompt, str):
        return prompt
    ids = _plain(prompt, what)
    if not isinstance(ids, Sequence):
        raise RequestError(f"{what} is {_shown(prompt)}; a prompt is text or token ids")
    return [token if type(token) is int else _read_id(token, what) for token in ids]


def _read_id(given: object, what: str) -> int:
    token = _plain(given, what)
    if not isinstance(token, int) or isinstance(token, bool):
        raise RequestError(f"{what} holds {_shown(given)}; token ids are whole numbers, in one row a prompt")
    return int(token)


def _plain(given: object, what: str) -> object:
    """A tensor or array as Python's lists and numbers; anything else as it is."""
    if isinstance(given, Tensor):
        whole = not (given.is_floating_point() or given.is_complex() or given.dtype is torch.bool)
    elif isinstance(given, np.ndarray | np.generic) and not isinstance(given, (str, *_BYTES)):
        whole = np.issubdtype(given.dtype, np.integer)
    else:
        return given
    if not whole:
        raise RequestError(f"{what} holds token ids of dtype {given.dtype}; whole numbers are expected")
    plain: object = given.tolist()
    return plain


def _is_prompt(part: object) -> bool:
    """Whether this is a prompt rather than a token id."""
    return isinstance(part, Sequence) or (isinstance(part, Tensor | np.ndarray) and part.ndim > 0)


def _shown(given: object) -> str:
    return f"{given!r:.80} ({type(given).__name__})"
