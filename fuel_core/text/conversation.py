"""What a caller says, checked and copied into the plain data that a chat template may see.

A template comes with a checkpoint and nobody has reviewed it. It is given JSON values and never an
object of the caller's, whose methods a sandbox cannot know.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from fuel_core.errors import RequestError

# Published templates read one of these; callers have whichever their API calls it.
_REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")


def read_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Check and copy the messages of one conversation.

    A message has a ``role`` and a ``content``: text, or a list of parts such as
    ``{"type": "text", "text": ...}``. Content may be null or absent where there are ``tool_calls`` or
    reasoning. Everything else in a message is the template's affair and is kept, except that null
    means absent, and that reasoning is offered under each name that templates use for it.

    Raises:
        RequestError: there is no message, or one is ill-formed.
    """
    read = read_objects(messages, "messages")
    if not read:
        raise RequestError("messages is empty; a chat needs at least one message")
    return [_message(message, f"messages[{place}]") for place, message in enumerate(read)]


def read_objects(objects: Sequence[Mapping[str, Any]], what: str) -> list[dict[str, Any]]:
    """Check and copy a list of JSON objects: messages, tools or documents.

    Raises:
        RequestError: it is anything else; the message names the place by ``what`` and index.
    """
    if not isinstance(objects, list | tuple):
        raise RequestError(f"{what} is {_kind(objects)}; a list of JSON objects (dicts) is expected")
    for place, item in enumerate(objects):
        if not isinstance(item, Mapping):
            raise RequestError(f"{what}[{place}] is {_kind(item)}; a JSON object (a dict) is expected")
    return read_value(objects, what)


def read_value(value: Any, what: str) -> Any:
    """Copy a JSON value: subclasses become their base, a tuple a list.

    Raises:
        RequestError: it holds something that JSON has no word for, or itself.
    """
    try:
        return _copy(value, what)
    except RecursionError:
        raise RequestError(f"{what} is nested too deeply, or holds itself") from None


def _message(message: dict[str, Any], what: str) -> dict[str, Any]:
    message = {key: value for key, value in message.items() if value is not None}
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise RequestError(f"{what} has {_found(message, 'role')}; a string such as 'user' is expected")
    reasoning = next((message[key] for key in _REASONING_KEYS if key in message), None)
    match message.get("content"):
        case None:
            if reasoning is None and not message.get("tool_calls"):
                raise RequestError(
                    f"{what} ({role}) has no content; only a message with tool_calls or reasoning may lack it"
                )
        case str():
            pass
        case list(parts) if all(isinstance(part, dict) for part in parts):
            pass
        case _:
            raise RequestError(
                f"{what} ({role}) has {_found(message, 'content')}; a string, or a list of parts such as "
                '{"type": "text", "text": ...}, is expected'
            )
    if reasoning is None:
        return message
    return {"thinking": reasoning} | message | {"reasoning_content": reasoning}


def _copy(value: Any, what: str) -> Any:
    match value:
        case None | bool():
            return value
        case str():
            return str.__str__(value)  # str() of an enum's member would be the member's name
        case int():
            return int.__int__(value)
        case float():
            return float.__float__(value)
        case list() | tuple():
            return [_copy(item, f"{what}[{place}]") for place, item in enumerate(value)]
        case Mapping():
            for key in value:
                if not isinstance(key, str):
                    raise RequestError(f"{what} has the key {key!r}; keys are strings")
            return {str.__str__(key): _copy(item, f"{what}.{key}") for key, item in value.items()}
    raise RequestError(f"{what} is {_kind(value)}; a chat holds JSON values only")


def _found(message: dict[str, Any], key: str) -> str:
    return f"{key} {message[key]!r:.80}" if key in message else f"no {key}"


def _kind(value: Any) -> str:
    return "null" if value is None else f"a {type(value).__name__}"
