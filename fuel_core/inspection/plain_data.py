"""The values of plans and configs as JSON has them."""

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch


def plain(value: object) -> Any:
    """Return ``value`` out of dicts, lists, text, numbers and None.

    A dtype becomes its name, a dataclass a dict of its fields. JSON has no infinity, so that becomes
    text; so does everything else that it has no form for.
    """
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case torch.dtype():
            return str(value).removeprefix("torch.")
        case Mapping():
            return {str(key): plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    return str(value)


def described(part: object) -> dict[str, Any]:
    """A part of a plan: its ``kind`` (the name of its class), its ``text`` for people, its fields."""
    own = plain(part)
    return {"kind": type(part).__name__, "text": str(part), **(own if isinstance(own, dict) else {})}
