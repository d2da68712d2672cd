"""Prompts equal those of transformers, and what cannot become a prompt is refused.

transformers is not the reference for two things, each with a test of its own: null content where the
template asks for it, and content in parts where the template takes only text.
"""

import json
import re
from collections.abc import Mapping
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any, Self

import jinja2
import pytest
import tokenizers
import transformers.utils.chat_template_utils
from tokenizers import decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from fuel_core.errors import RequestError, TokenizerError
from fuel_core.text.chat_template import ChatTemplate
from fuel_core.text.tokenizer import Tokenizer

FOLDER = Path(__file__).parents[1] / "fixtures" / "chat_templates"
FIXTURES = sorted(path.stem for path in FOLDER.glob("*.jinja"))
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}

CALL = {"name": "weather", "arguments": {"city": "Zürich <&> 東京", "days": 2}}
CALLS = [{"id": "call00001", "type": "function", "function": CALL}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The <b>weather</b> & 'more' — é",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        },
    }
]


def system(content: Any) -> dict[str, Any]:
    return {"role": "system", "content": content}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def tool(content: str) -> dict[str, Any]:
    return {"role": "tool", "content": content, "name": "weather", "tool_call_id": "call00001"}


PLAIN = [system("Be brief."), user("Hi"), assistant("Hello!"), user("1+1?")]
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "user": [user("Hi")],
    "system": [system("Be brief."), user("Hi")],
    "turns": PLAIN,
    "turns without system": PLAIN[1:],
    "answered": PLAIN[:3],
    "outer space": [system(" s\n"), user("\n\n a  "), assistant("  b \n"), user(" c "), assistant(" d \n")],
    "characters": [user("<b>&amp;\"'\\n{{ x }}{% y %}\U000f0000 "), assistant("naïve 世界 👋🏽\u2028\x00")],
    "empty": [user(""), assistant("")],
    "only a system message": [system("Be brief.")],
    "only an answer": [assistant("Hello!")],
    "two users": [user("Hi"), user("there")],
    "two systems": [system("Be brief."), system("Be kind."), user("Hi")],
    "late system": [user("Hi"), system("Be brief.")],
    "unknown role": [user("Hi"), {"role": "critic", "content": "No."}],
    "tool call": [user("Weather?"), assistant("", tool_calls=CALLS), tool('{"t": 3}'), assistant("3 °C")],
    "call with text": [user("Weather?"), assistant("I'll look.", tool_calls=CALLS)],
    "two calls": [user("Weather?"), assistant("", tool_calls=CALLS * 2), tool("3"), tool("4")],
    "null fields": [user("Hi"), assistant("Hello!", tool_calls=None, name=None), user("1+1?")],
    "reasoning": [user("Hi"), assistant("Hello!", reasoning_content="Greet."), user("1+1?")],
    "reasoning by another name": [user("Hi"), assistant("Hello!", reasoning="Greet."), user("1+1?")],
    "reasoning within": [user("Hi"), assistant("<think>Greet.</think>Hello!")],
    "no think": [system("Be brief. /no_think"), user("Hi"), assistant("Hello!")],
}

# From the documentation of each format.
PROMPTS = {
    "deepseek-v2": "<s>Be brief.\n\nUser: Hi\n\nAssistant: Hello!</s>User: 1+1?\n\nAssistant:",
    "deepseek-v3": "<s>Be brief.<｜User｜>Hi<｜Assistant｜>Hello!</s><｜User｜>1+1?<｜Assistant｜>",
    "llama-2": "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST] Hello! </s><s>[INST] 1+1? [/INST]",
    "llama-3.1": "<s><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n"
    "Today Date: 06 Jul 2024\n\nBe brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\nHello!<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\n1+1?<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "mistral-v0.3": "<s>[INST] Hi[/INST] Hello!</s>[INST] Be brief.\n\n1+1?[/INST]",
    "phi-3": "<|system|>\nBe brief.<|end|>\n<|user|>\nHi<|end|>\n<|assistant|>\nHello!<|end|>\n"
    "<|user|>\n1+1?<|end|>\n<|assistant|>\n",
    "phi-4": "<|im_start|>system<|im_sep|>Be brief.<|im_end|><|im_start|>user<|im_sep|>Hi<|im_end|>"
    "<|im_start|>assistant<|im_sep|>Hello!<|im_end|><|im_start|>user<|im_sep|>1+1?<|im_end|>"
    "<|im_start|>assistant<|im_sep|>",
    "qwen2.5": "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
    "<|im_start|>assistant\nHello!<|im_end|>\n<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n",
    "smollm3": "<|im_start|>system\n## Metadata\n\nKnowledge Cutoff Date: June 2025\n"
    "Today Date: 06 July 2024\nReasoning Mode: /think\n\n## Custom Instructions\n\nBe brief.\n\n<|im_end|>\n"
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello!<|im_end|>\n"
    "<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n",
    "zephyr": "<|system|>\nBe brief.</s>\n<|user|>\nHi</s>\n<|assistant|>\nHello!</s>\n"
    "<|user|>\n1+1?</s>\n<|assistant|>\n",
}


class Saturday(datetime):
    """A clock that stands still, for both sides."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Self:
        return cls(2024, 7, 6, 12, 0, 0)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformers.utils.chat_template_utils, "datetime", Saturday)


def source(name: str) -> str:
    return (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")


def ours(template: str | Mapping[str, str], tokens: Mapping[str, str] = TOKENS) -> ChatTemplate:
    templates = {"default": template} if isinstance(template, str) else template
    return ChatTemplate(templates=templates, special_tokens=tokens, now=Saturday.now)


def library(tokens: Mapping[str, int]) -> tokenizers.Tokenizer:
    """A byte-level tokenizer without merges, which puts the first of ``tokens`` before each text."""
    alphabet = {
        character: place for place, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))
    }
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=alphabet | tokens, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(tokens))
    bos, bos_id = next(iter(tokens.items()))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", special_tokens=[(bos, bos_id)]
    )
    return tokenizer


def theirs(template: str | Mapping[str, str]) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=library({"<s>": 300, "</s>": 301}), **TOKENS, chat_template=template
    )


class Both:
    """One template on both sides."""

    def __init__(self, template: str) -> None:
        self.ours, self.theirs = ours(template), theirs(template)

    def render(self, messages: Any, **arguments: Any) -> str | None:
        """Demand the same outcome, and return the prompt unless both refuse."""
        try:
            expected = self.theirs.apply_chat_template(messages, tokenize=False, **arguments)
        except Exception as error:
            # the words of raise_exception are the template's, other errors are worded by each side
            words = re.escape(str(error)) if type(error) is jinja2.TemplateError else None
            with pytest.raises(RequestError, match=words):
                self.ours.render(messages, **arguments)
            return None
        assert self.ours.render(messages, **arguments) == expected
        return expected


@pytest.mark.parametrize("tools", [None, TOOLS], ids=["no tools", "tools"])
@pytest.mark.parametrize("name", FIXTURES)
def test_prompts_equal_those_of_transformers(name: str, tools: Any) -> None:
    both, rendered = Both(source(name)), 0
    for messages in CONVERSATIONS.values():
        for ending in (
            {"add_generation_prompt": True},
            {"add_generation_prompt": False},
            {"add_generation_prompt": False, "continue_final_message": True},
        ):
            rendered += both.render(messages, tools=tools, **ending) is not None
    assert rendered >= 30, "hardly anything was compared"


@pytest.mark.parametrize(("name", "prompt"), PROMPTS.items())
def test_prompts_follow_the_documented_format(name: str, prompt: str) -> None:
    assert ours(source(name)).render(PLAIN) == prompt


def test_every_fixture_is_documented_and_compared() -> None:
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert {*PROMPTS, "gemma"} == set(FIXTURES)
    assert [name for name in FIXTURES if f"`{name}.jinja`" not in readme] == []


def test_tools_are_written_as_documented() -> None:
    prompt = ours(source("qwen2.5")).render(
        [user("Weather?"), assistant(None, tool_calls=CALLS), tool("3")], tools=TOOLS
    )
    assert f"<tools>\n{json.dumps(TOOLS[0], ensure_ascii=False)}\n</tools>" in prompt
    assert (
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich <&> 東京", "days": 2}}\n</tool_call>'
        "<|im_end|>\n<|im_start|>user\n<tool_response>\n3\n</tool_response><|im_end|>\n"
    ) in prompt


@pytest.mark.parametrize("content", [{}, {"content": None}], ids=["absent", "null"])
def test_null_content_is_left_out_as_transformers_does(content: dict[str, Any]) -> None:
    """Handed on, it is the word None in the prompt of each template that trims its text."""
    messages = [user("Weather?"), {"role": "assistant", "tool_calls": CALLS} | content]
    assert Both("{% for m in messages %}{{ m.content | trim }}|{% endfor %}").render(messages) == "Weather?||"


@pytest.mark.parametrize("content", [{}, {"content": None}], ids=["absent", "null"])
def test_a_template_that_asks_for_null_content_is_given_it(content: dict[str, Any]) -> None:
    """transformers drops the null, whereupon DeepSeek's published templates fail on their own tool calls."""
    function = {"name": "weather", "arguments": '{"days": 2}'}
    calls = [{"type": "function", "function": function}]
    messages = [
        user("Weather?"),
        {"role": "assistant", "tool_calls": calls} | content,
        tool("3"),
        assistant("3 °C"),
    ]
    assert ours(source("deepseek-v3")).render(messages, add_generation_prompt=False) == (
        "<s><｜User｜>Weather?<｜Assistant｜><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n"
        '```json\n{"days": 2}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜></s>'
        "<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>3<｜tool▁output▁end｜><｜tool▁outputs▁end｜>3 °C</s>"
    )


PARTS = [user([{"type": "text", "text": "one"}, {"type": "text", "text": "two "}])]
READS_PARTS = "{% for m in messages %}{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endfor %}"


def test_parts_reach_the_template_intact() -> None:
    both = Both(READS_PARTS)
    assert both.render(PARTS) == "<one><two >"
    ending = {"add_generation_prompt": False, "continue_final_message": True}
    assert both.render(PARTS, **ending) == "<one><two "


@pytest.mark.parametrize("name", ["gemma", "llama-3.1"])
def test_parts_are_refused_where_the_template_takes_only_text(name: str) -> None:
    """``content | trim`` writes ``[{'type': 'text', ...`` into the prompt, and the model answers that."""
    with pytest.raises(RequestError, match=r"takes text only.* messages\[0\] as a Python list; join them"):
        ours(source(name)).render(PARTS)


# Choosing a template, and its variables.


def test_the_tool_template_is_chosen_where_there_are_tools() -> None:
    templates = {"default": "plain", "tool_use": "with tools", "rag": "{{ documents[0].text }}"}
    for arguments in ({}, {"tools": TOOLS}, {"tools": []}):
        expected = theirs(templates).apply_chat_template([user("Hi")], tokenize=False, **arguments)
        assert ours(templates).render([user("Hi")], **arguments) == expected
    assert ours(templates).render([user("Hi")], tools=TOOLS, name="default") == "plain"
    assert ours(templates).render([user("Hi")], documents=[{"text": "a book"}], name="rag") == "a book"


@pytest.mark.parametrize(
    ("templates", "name", "complaint"),
    [
        ({"default": ""}, "rag", "no chat template named 'rag'; it has 'default'"),
        ({"rag": "", "agent": ""}, None, "no chat template named 'default'; it has 'agent', 'rag'"),
    ],
)
def test_a_template_that_is_not_there_is_named(templates: Any, name: str | None, complaint: str) -> None:
    with pytest.raises(RequestError, match=complaint):
        ours(templates).render([user("Hi")], name=name)


def test_a_broken_template_does_not_harm_the_others() -> None:
    template = ours({"default": "fine", "rag": "{% if %}"})
    assert template.render([user("Hi")]) == "fine"
    with pytest.raises(TokenizerError, match="'rag' of this checkpoint does not compile: line 1"):
        template.render([user("Hi")], name="rag")
    assert template.render([user("Hi")]) == "fine"


def test_variables_reach_the_template_and_replace_special_tokens() -> None:
    template = ours(
        "{{ bos_token }}{{ eos_token }}{{ depth.level }} {{ tools is none and documents is none }}"
    )
    prompt = template.render([user("Hi")], variables={"depth": {"level": 3}, "bos_token": "<B>"})
    assert prompt == "<B></s>3 True"
    assert (
        ours(source("smollm3"))
        .render([user("Hi")], variables={"enable_thinking": False})
        .endswith("<|im_start|>assistant\n<think>\n\n</think>\n")
    )


@pytest.mark.parametrize("tools", [None, [], TOOLS], ids=["none", "empty", "one"])
@pytest.mark.parametrize("documents", [None, [], [{"text": "a book"}]], ids=["none", "empty", "one"])
def test_what_is_not_given_is_none(tools: Any, documents: Any) -> None:
    """Templates distinguish no tools from an empty list of them."""
    prompt = Both("{{ tools }}{{ documents }}").render([user("Hi")], tools=tools, documents=documents)
    assert prompt == f"{tools}{documents}"


@pytest.mark.parametrize(
    ("variables", "complaint"),
    [
        ({"messages": [], "tools": []}, "variables holds messages, tools"),
        ({"model": object()}, r"variables\.model is a object; a chat holds JSON values only"),
        (["enable_thinking"], "variables is a list"),
        ({1: 2}, "variables has the key 1"),
    ],
)
def test_variables_are_checked(variables: Any, complaint: str) -> None:
    with pytest.raises(RequestError, match=complaint):
        ours("x").render([user("Hi")], variables=variables)


@pytest.mark.parametrize(
    ("text", "variables", "complaint"),
    [
        ("{{ depth }}", {"dept": 1, "depth": 2}, "never reads dept,.* that it reads: depth"),
        ("{{ messages }}", {"enable_thinking": False}, "never reads enable_thinking,.* it reads: none"),
        ("{% set depth = 1 %}{{ depth }}", {"depth": 2}, "never reads depth"),
    ],
)
def test_a_variable_that_is_never_read_is_refused(text: str, variables: Any, complaint: str) -> None:
    """A misspelt switch changed nothing and nobody said so."""
    with pytest.raises(RequestError, match=complaint):
        ours(text).render([user("Hi")], variables=variables)


def test_a_variable_is_read_wherever_it_stands() -> None:
    text = (
        "{% if a is not defined %}{% set a = 1 %}{% endif %}{{ a }}"
        "{% for m in messages if b %}{{ c }}{% endfor %}"
        "{% macro f(x=d) %}{{ e }}{% endmacro %}{% generation %}{{ g }}{% endgeneration %}"
    )
    template = ours(text)
    for name in "abcdeg":
        template.render([user("Hi")], variables={name: 1})


# Refusals.


@pytest.mark.parametrize("messages", [PLAIN, [user("Hi"), user("there")]], ids=["system", "user, user"])
def test_a_refusing_template_speaks_for_itself(messages: Any) -> None:
    with pytest.raises(
        RequestError, match=r"refuses this conversation: (System role not|Conversation roles must)"
    ):
        ours(source("gemma")).render(messages)


def test_a_failing_template_is_a_request_error() -> None:
    with pytest.raises(RequestError, match=r"fails on this conversation \(UndefinedError: .*'content'"):
        ours(source("zephyr")).render([user("Hi"), {"role": "assistant", "tool_calls": CALLS}])


def test_no_template_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    """Guessing ChatML made base models answer in formats they never saw."""
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "<s>"}')
    with pytest.raises(
        RequestError, match=r"has no chat template: .*give it a plain prompt.*chat_template\.jinja"
    ):
        ChatTemplate.from_folder(tmp_path)
    given = ChatTemplate.from_folder(tmp_path, template="{{ bos_token }}{{ messages[0].content }}")
    assert given.render([user("Hi")]) == "<s>Hi"


# Going on with the final message.


def test_a_continued_message_ends_the_prompt() -> None:
    template = ours(source("llama-3.1"))
    messages = [user("Count."), assistant("1, 2, ")]
    prompt = template.render(messages, continue_final_message=True)
    assert prompt.endswith("<|start_header_id|>assistant<|end_header_id|>\n\n1, 2,"), "the template trims"
    assert (
        ours(source("zephyr")).render(messages, continue_final_message=True).endswith("<|assistant|>\n1, 2, ")
    )
    opened = "{{ add_generation_prompt }}: {{ messages[-1].content }}"
    assert ours(opened).render(messages, continue_final_message=True) == "False: 1, 2, "
    assert messages == [user("Count."), assistant("1, 2, ")], "the caller's messages were marked"


@pytest.mark.parametrize(
    ("template", "messages", "complaint"),
    [
        ("{{ messages[0].content }}", PLAIN, "does not write the final message as it is.* '1\\+1\\?'"),
        ("{{ messages[0].content }}", [user("Hi"), assistant(" ")], "does not write the final message.* ''$"),
        ("{{ messages[-1].content | upper }}", PLAIN[:2], "does not write the final message as it is.* 'Hi'"),
        ("{{ messages }}", [assistant(None, tool_calls=CALLS)], r"final message \(assistant\) has no text"),
        ("{{ messages }}", [user([])], r"final message \(user\) has no text"),
        ("{{ messages }}", [user([{"type": "image"}])], r"final message \(user\) has no text"),
    ],
)
def test_what_cannot_be_continued_is_refused(template: str, messages: Any, complaint: str) -> None:
    with pytest.raises(RequestError, match=complaint):
        ours(template).render(messages, continue_final_message=True)


def test_an_answer_is_either_continued_or_opened() -> None:
    with pytest.raises(RequestError, match="ask for one of them"):
        ours("x").render(PLAIN, continue_final_message=True, add_generation_prompt=True)


# Token ids.

LLAMA_3 = {
    "<|begin_of_text|>": 128000,
    "<|start_header_id|>": 128006,
    "<|end_header_id|>": 128007,
    "<|eot_id|>": 128009,
}


def test_ids_hold_exactly_one_bos(tmp_path: Path) -> None:
    """Llama 3's template writes BOS and its tokenizer adds it: encoded as plain text, a chat has two."""
    backend = library(LLAMA_3)
    backend.save(str(tmp_path / "tokenizer.json"))
    config = {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "chat_template.jinja").write_text(source("llama-3.1"), encoding="utf-8")
    tokenizer, template = Tokenizer.from_folder(tmp_path), ChatTemplate.from_folder(tmp_path)
    fast = PreTrainedTokenizerFast.from_pretrained(str(tmp_path))
    assert tokenizer.encode("Hi")[0] == 128000

    variables = {"date_string": "26 Jul 2024"}
    ids = template.encode(tokenizer, PLAIN, variables=variables)
    assert ids[:2] == [128000, 128006]
    assert ids.count(128000) == 1
    assert ids == fast.apply_chat_template(PLAIN, add_generation_prompt=True, return_dict=False, **variables)


def test_ids_hold_no_bos_where_the_template_writes_none(tmp_path: Path) -> None:
    library({"<s>": 300, "</s>": 301}).save(str(tmp_path / "tokenizer.json"))
    ids = ours(source("zephyr")).encode(Tokenizer.from_folder(tmp_path), PLAIN)
    assert ids == theirs(source("zephyr")).apply_chat_template(
        PLAIN, add_generation_prompt=True, return_dict=False
    )
    assert 300 not in ids


def test_encode_hands_every_argument_on(tmp_path: Path) -> None:
    library({"<s>": 300}).save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.from_folder(tmp_path)
    text = "{{ tools }}{{ documents }}{{ add_generation_prompt }}{{ v }}{{ messages[-1].content }}!"
    template = ours({"default": "", "other": text})
    arguments: dict[str, Any] = {
        "tools": TOOLS,
        "documents": [{"text": "d"}],
        "name": "other",
        "variables": {"v": 1},
    }
    for ending in ({"add_generation_prompt": False}, {"continue_final_message": True}):
        prompt = template.render(PLAIN, **arguments, **ending)
        assert tokenizer.decode(template.encode(tokenizer, PLAIN, **arguments, **ending)) == prompt
