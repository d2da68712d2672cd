"""Conversations to prompts, by the chat template that a checkpoint brings.

Templates are published for ``apply_chat_template`` of transformers, so a prompt is what that function
makes of it, character by character. Two things are done differently:

* transformers drops content that is null. DeepSeek-V2.5, V3 and R1 recognise tool calls by
  ``message['content'] is none`` and fail then; a template that asks this is given the null.
* A template that takes only text writes a list of parts as Python would print it. The model would
  answer that; here it is an error.

Source: transformers 5.23: the variables of a template, and how a final message is continued.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from fuel_core.errors import RequestError
from fuel_core.text.conversation import read_messages, read_objects, read_value
from fuel_core.text.template_files import DEFAULT, TEMPLATE_FILE, read_special_tokens, read_templates
from fuel_core.text.template_sandbox import SandboxedTemplate
from fuel_core.text.tokenizer import TOKENIZER_CONFIG_FILE, Tokenizer

TOOL_USE = "tool_use"

_OWN_VARIABLES = ("messages", "tools", "documents", "add_generation_prompt")

# Appended, with a space, to the final message: shows where it ends in the prompt, and by the space
# whether the template strips it. Private use, so no template means anything by it.
_END_MARK = "\U000f0000"


@dataclass(frozen=True, kw_only=True)
class ChatTemplate:
    """The chat templates of a checkpoint.

    Attributes:
        templates: jinja2 sources by name. Most checkpoints have one, ``"default"``.
        special_tokens: texts that templates know by name, ``bos_token`` and the like.
        source: what errors call the checkpoint.
        now: the clock that templates read when they state today's date.
    """

    templates: Mapping[str, str]
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    source: str = "this checkpoint"
    now: Callable[[], datetime] = datetime.now
    _compiled: dict[str, SandboxedTemplate] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @classmethod
    def from_folder(cls, folder: Path | str, *, template: str | None = None) -> Self:
        """Read the chat templates of a checkpoint, and the special tokens that they may name.

        Args:
            template: the source of a template to use instead of the checkpoint's.

        Raises:
            RequestError: the checkpoint has no chat template.
            TokenizerError: a file is unreadable, or ``chat_template`` is of no known form.
        """
        folder = Path(folder)
        templates = read_templates(folder) if template is None else {DEFAULT: template}
        if not templates:
            raise RequestError(
                f"{folder} has no chat template: neither {TEMPLATE_FILE} nor `chat_template` in "
                f"{TOKENIZER_CONFIG_FILE}. It may be a base model, which continues text and does not chat: "
                "give it a plain prompt. If its authors document a chat format, write that as "
                f"{TEMPLATE_FILE}; fuel guesses none, because a wrong one yields fluent wrong answers"
            )
        return cls(templates=templates, special_tokens=read_special_tokens(folder), source=str(folder))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        name: str | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the prompt of a conversation.

        Args:
            messages: objects with ``role`` and ``content``; null or absent content is for messages with
                tool calls or reasoning. Values are JSON values and are passed on as they are.
            tools: JSON schemas of functions that the model may call. Ignored by templates without tools.
            documents: for templates that quote them, usually with ``title`` and ``text``.
            add_generation_prompt: open the answer; by default unless the final message is continued.
            continue_final_message: end the prompt where the content of the final message ends, so that the
                model writes on. Space that the template strips from its end is not in the prompt.
            name: which template; by default ``"tool_use"`` where there are tools and such a template, else
                ``"default"``.
            variables: further variables of the template, such as ``enable_thinking``; they may replace
                special tokens.

        Raises:
            RequestError: ill-formed arguments, a variable that the template never reads, no such template, or
                the template refuses the conversation.
            TokenizerError: the template does not compile, or does what a template may not.
        """
        if add_generation_prompt is None:
            add_generation_prompt = not continue_final_message
        elif add_generation_prompt and continue_final_message:
            raise RequestError(
                "continue_final_message goes on with the last message, add_generation_prompt opens a new "
                "one; ask for one of them"
            )
        template = self._template(self._choose(name, with_tools=tools is not None))
        chosen = _read_variables({} if variables is None else variables)
        _refuse_unread(chosen, template)
        conversation = read_messages(messages)
        if template.asks_for_null_content:
            conversation = [{"content": None} | message for message in conversation]
        final_text = _mark_end(conversation[-1]) if continue_final_message else ""
        prompt = template.render(
            {
                **self.special_tokens,
                **chosen,
                "messages": conversation,
                "tools": None if tools is None else read_objects(tools, "tools"),
                "documents": None if documents is None else read_objects(documents, "documents"),
                "add_generation_prompt": add_generation_prompt,
            }
        )
        _refuse_printed_parts(prompt, conversation, template.what)
        return _cut_at_end(prompt, final_text, template.what) if continue_final_message else prompt

    def encode(
        self,
        tokenizer: Tokenizer,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        name: str | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Return the token ids of a conversation's prompt; arguments as for :meth:`render`.

        The tokenizer puts nothing around the prompt: a template that writes BOS gives exactly one, and one
        that writes none gives none, even where the tokenizer begins plain text with BOS. The template's
        authors decided what a conversation starts with.
        """
        prompt = self.render(
            messages,
            tools=tools,
            documents=documents,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            name=name,
            variables=variables,
        )
        return tokenizer.encode(prompt, add_special_tokens=False)

    def _choose(self, name: str | None, *, with_tools: bool) -> str:
        chosen = name
        if chosen is None:
            chosen = TOOL_USE if with_tools and TOOL_USE in self.templates else DEFAULT
        if chosen not in self.templates:
            raise RequestError(
                f"{self.source} has no chat template named {chosen!r}; it has "
                f"{', '.join(map(repr, sorted(self.templates)))}: choose one of them by name"
            )
        return chosen

    def _template(self, name: str) -> SandboxedTemplate:
        if name not in self._compiled:
            what = f"the chat template {name!r} of {self.source}"
            self._compiled[name] = SandboxedTemplate.compile(self.templates[name], what=what, now=self.now)
        return self._compiled[name]


def _refuse_printed_parts(prompt: str, conversation: Sequence[Mapping[str, Any]], what: str) -> None:
    for place, message in enumerate(conversation):
        content = message.get("content")
        if isinstance(content, list) and content and str(content) in prompt:
            raise RequestError(
                f"{what} takes text only, and would print the parts of messages[{place}] as a Python list; "
                "join them to one string"
            )


def _mark_end(message: dict[str, Any]) -> str:
    """Mark where the text of a message ends, and return that text."""
    content = message.get("content")
    if isinstance(content, str):
        message["content"] = f"{content}{_END_MARK} "
        return content
    for part in reversed(content or []):
        if isinstance(text := part.get("text"), str):
            part["text"] = f"{text}{_END_MARK} "
            return text
    raise RequestError(
        f"continue_final_message: the final message ({message['role']}) has no text to go on with"
    )


def _cut_at_end(prompt: str, final_text: str, what: str) -> str:
    before, mark, after = prompt.rpartition(_END_MARK)
    if not mark or final_text.strip() not in before:
        raise RequestError(
            f"continue_final_message: {what} does not write the final message as it is, so there is no place "
            f"in the prompt to go on from. The message: {final_text.strip()!r:.200}"
        )
    return before if after.startswith(" ") else before.rstrip()


def _refuse_unread(variables: Mapping[str, Any], template: SandboxedTemplate) -> None:
    unread = sorted(set(variables) - template.reads)
    if unread:
        read = sorted(template.reads - set(_OWN_VARIABLES))
        raise RequestError(
            f"{template.what} never reads {', '.join(unread)}, so it would change nothing; the variables "
            f"that it reads: {', '.join(read) or 'none'}"
        )


def _read_variables(variables: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(variables, Mapping):
        raise RequestError(f"variables is a {type(variables).__name__}; names with JSON values are expected")
    taken = sorted(set(_OWN_VARIABLES) & set(variables))
    if taken:
        raise RequestError(f"variables holds {', '.join(taken)}; give that as an argument of its own")
    read: dict[str, Any] = read_value(variables, "variables")
    return read
