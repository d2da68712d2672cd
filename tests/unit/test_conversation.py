"""What counts as a conversation, and that a template is only ever handed copies of plain values."""

from collections import OrderedDict, UserDict
from enum import Enum, IntEnum
from types import SimpleNamespace
from typing import Any

import pytest

from fuel_core.errors import RequestError
from fuel_core.text.conversation import read_messages, read_objects, read_value

CALLS = [{"function": {"name": "f", "arguments": {}}}]


class Role(str, Enum):  # noqa: UP042 - str() of a StrEnum's member is its value, of this one's it is not
    USER = "user"


class Level(IntEnum):
    HIGH = 3


class Loud(str):
    def strip(self, characters: str | None = None) -> str:
        raise AssertionError("a method of the caller's ran")


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": ""},
        {
            "role": "user",
            "content": [{"type": "text", "text": "a"}],
            "name": "b",
            "weight": 0.5,
            "train": True,
        },
        {"role": "tool", "content": "3", "tool_call_id": "x"},
        {"role": "assistant", "content": "a", "tool_calls": CALLS},
        {"role": "assistant", "tool_calls": CALLS},
    ],
)
def test_a_message_is_kept_as_it_is(message: dict[str, Any]) -> None:
    assert read_messages([message]) == [message]
    assert read_messages((message,)) == [message]


def test_null_means_absent() -> None:
    message = {"role": "assistant", "content": None, "tool_calls": CALLS, "name": None}
    assert read_messages([message]) == [{"role": "assistant", "tool_calls": CALLS}]


@pytest.mark.parametrize("key", ["reasoning_content", "thinking", "reasoning"])
def test_reasoning_is_offered_under_each_name_that_templates_use(key: str) -> None:
    (message,) = read_messages([{"role": "assistant", key: "hm"}])
    assert message["reasoning_content"] == message["thinking"] == "hm"


@pytest.mark.parametrize(
    ("messages", "complaint"),
    [
        ("Hi", r"messages is a str; a list of JSON objects"),
        (None, "messages is null; a list"),
        ({"role": "user", "content": "Hi"}, "messages is a dict; a list"),
        ([], "messages is empty"),
        (["Hi"], r"messages\[0\] is a str; a JSON object"),
        ([[{"role": "user", "content": "Hi"}]], r"messages\[0\] is a list; a JSON object"),
        ([SimpleNamespace(role="user", content="Hi")], r"messages\[0\] is a SimpleNamespace"),
        ([{"content": "Hi"}], r"messages\[0\] has no role"),
        ([{"role": None, "content": "Hi"}], r"messages\[0\] has no role"),
        ([{"role": "", "content": "Hi"}], r"messages\[0\] has role ''"),
        ([{"role": 3, "content": "Hi"}], r"messages\[0\] has role 3"),
        ([{"role": "user", "content": "Hi"}, {"role": "user"}], r"messages\[1\] \(user\) has no content"),
        ([{"role": "assistant", "content": None, "tool_calls": []}], r"\(assistant\) has no content"),
        ([{"role": "user", "content": 3}], r"messages\[0\] \(user\) has content 3; a string, or a list"),
        ([{"role": "user", "content": {"text": "Hi"}}], r"has content \{'text': 'Hi'\}; a string, or a list"),
        ([{"role": "user", "content": ["Hi"]}], r"has content \['Hi'\]; a string, or a list"),
        (
            [{"role": "user", "content": "Hi", "at": {1, 2}}],
            r"messages\[0\]\.at is a set; .*JSON values only",
        ),
        ([{"role": "user", "content": [{"text": b"Hi"}]}], r"messages\[0\]\.content\[0\]\.text is a bytes"),
        ([{"role": "user", "content": "Hi", 3: "x"}], r"messages\[0\] has the key 3; keys are strings"),
    ],
)
def test_an_ill_formed_conversation_is_refused(messages: Any, complaint: str) -> None:
    with pytest.raises(RequestError, match=complaint):
        read_messages(messages)


def test_the_place_of_a_wrong_tool_is_named() -> None:
    with pytest.raises(RequestError, match=r"tools\[1\] is a function; a JSON object"):
        read_objects([{"name": "f"}, lambda: None], "tools")


def test_subclasses_become_the_plain_values_they_stand_for() -> None:
    value = UserDict(a=Role.USER, b=Level.HIGH, c=Loud("x"), d=(True, None, 1.5), e=OrderedDict(z=1, y=2))
    read = read_value(value, "v")
    assert read == {"a": "user", "b": 3, "c": "x", "d": [True, None, 1.5], "e": {"z": 1, "y": 2}}
    assert [type(item) for item in read.values()] == [str, int, str, list, dict]
    assert list(read["e"]) == ["z", "y"], "the order of keys is what the model reads"


def test_nothing_of_the_caller_is_handed_on() -> None:
    inner: dict[str, Any] = {"type": "text", "text": "a"}
    message = {"role": "user", "content": [inner]}
    read = read_messages([message])
    read[0]["content"][0]["text"] = "b"
    assert message == {"role": "user", "content": [{"type": "text", "text": "a"}]}


def test_a_value_that_holds_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(RequestError, match="v is nested too deeply, or holds itself"):
        read_value(endless, "v")
