"""Conversations: turns that only read what is new, answers that can be stopped, and the terminal."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fuel_core
from fuel_core import LanguageModel
from fuel_core.cli.app import app
from fuel_core.errors import CapacityError, FuelError, RequestError
from fuel_core.generate.chat import Conversation
from fuel_core.generate.settings import GenerationSettings
from fuel_core.text.tokenizer import Tokenizer

TEMPLATE = (
    "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
SETTINGS = GenerationSettings(max_tokens=10)


@pytest.fixture
def folder(checkpoint: Callable[..., Path]) -> Path:
    folder = checkpoint("mixed-window")
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture
def model(folder: Path) -> LanguageModel:
    return fuel_core.load(folder, dtype="float64")


def rendered(messages: list[dict[str, str]]) -> str:
    return "".join(f"[{m['role']}]{m['content']}\n" for m in messages) + "[assistant]"


def test_chat_is_generation_from_the_rendered_prompt(model: LanguageModel) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    answer = model.chat(messages, SETTINGS)
    assert answer.prompt_token_ids == tuple(model.tokenizer.encode(rendered(messages)))
    assert answer.text == model.generate(rendered(messages), SETTINGS).text
    assert "".join(model.stream_chat(messages, SETTINGS)) == answer.text


def test_what_a_template_lets_choose_is_chosen(folder: Path) -> None:
    """enable_thinking=False of Qwen3 could be said to the template alone, and to no method that answers."""
    (folder / "chat_template.jinja").write_text(TEMPLATE + "{{ '' if think else '[none]' }}")
    model = fuel_core.load(folder, dtype="float64")
    messages = [{"role": "user", "content": "Hello"}]
    for think, ending in ((True, ""), (False, "[none]")):
        chosen = {"think": think}
        prompt = model.tokenizer.encode(rendered(messages) + ending)
        assert model.chat_prompt(messages, template_variables=chosen) == prompt
        answer = model.chat(messages, SETTINGS, template_variables=chosen)
        assert answer.prompt_token_ids == tuple(prompt)
        stream = model.stream_chat(messages, SETTINGS, template_variables=chosen)
        assert "".join(stream) == answer.text
        assert stream.completion is not None
        assert stream.completion.prompt_token_ids == tuple(prompt)
    for answer_by in (model.chat_prompt, model.chat, model.stream_chat):
        with pytest.raises(RequestError, match=r"never reads thinking.* it reads: think"):
            answer_by(messages, template_variables={"thinking": True})


def test_a_turn_reads_only_what_is_new(model: LanguageModel) -> None:
    """Each turn is answered as a fresh run would, though its prompt is mostly in the cache already."""
    conversation = Conversation(model, SETTINGS, system="Be brief.", backend="eager")
    session = conversation._session
    for text in ("Hello", "And then?", "Why"):
        turns = [*conversation.messages, {"role": "user", "content": text}]
        held = session.caches[0].length
        prompt = model.tokenizer.encode(rendered(turns))
        answer = "".join(conversation.ask(text))
        assert answer == model.generate(prompt, SETTINGS).text
        assert session.caches[0].token_ids[: len(prompt)] == prompt
        assert held == 0 or session.counters.plans == 1
    assert [m["role"] for m in conversation.messages] == ["system", *["user", "assistant"] * 3]


def test_the_same_prompt_twice_still_gives_its_answer(model: LanguageModel) -> None:
    """A prompt that is held whole was answered with nothing, or its last token was written twice."""
    session = model.session(64)
    first = model.stream("Hello", SETTINGS, session=session)
    texts = ["".join(first), "".join(model.stream("Hello", SETTINGS, session=session))]
    texts.append("".join(model.stream("Hell", SETTINGS, session=session)))
    assert texts[0] == texts[1] == model.generate("Hello", SETTINGS).text
    assert texts[2] == model.generate("Hell", SETTINGS).text


def test_a_stopped_answer_is_remembered_as_far_as_it_went(model: LanguageModel) -> None:
    conversation = Conversation(model, SETTINGS, backend="eager")
    answer = conversation.ask("Hello")
    said = next(answer) + next(answer)
    answer.close()
    assert conversation.messages[-1] == {"role": "assistant", "content": said}
    assert "".join(conversation.ask("Go on"))


def test_a_turn_that_cannot_be_answered_leaves_no_trace(model: LanguageModel) -> None:
    conversation = Conversation(model, SETTINGS, backend="eager")
    "".join(conversation.ask("Hello"))
    before = list(conversation.messages)
    with pytest.raises(CapacityError):
        "".join(conversation.ask("x" * 300))
    assert conversation.messages == before
    assert "".join(conversation.ask("Hello"))


def talk(
    folder: Path, *lines: str, options: Sequence[str] = ("--max-tokens", "8", "--temperature", "0")
) -> tuple[int, str, str]:
    arguments = ["chat", str(folder), *options]
    result = CliRunner().invoke(app, arguments, input="".join(f"{line}\n" for line in lines))
    return result.exit_code, result.stdout, result.stderr


def test_the_terminal_talks_saves_and_resets(folder: Path, tmp_path: Path) -> None:
    saved, after = tmp_path / "saved.json", tmp_path / "after.json"
    status, out, err = talk(
        folder, "/system Be brief.", "Hello \\", "there", f"/save {saved}", "/reset", f"/save {after}"
    )
    assert (status, err) == (0, "")
    messages = json.loads(saved.read_text())
    assert [m["role"] for m in messages] == ["system", "user", "assistant"]
    assert messages[1]["content"] == "Hello \nthere"
    assert out == messages[2]["content"] + "\n"
    assert json.loads(after.read_text()) == messages[:1]


def test_errors_do_not_end_the_program(folder: Path, tmp_path: Path) -> None:
    status, out, err = talk(folder, "x" * 300, "/nonsense", f"/save {tmp_path}", "Hello")
    assert status == 1
    assert "256 positions" in " ".join(err.split())
    assert "shorten the message" in err
    assert "/nonsense is no command" in err
    assert "cannot be written" in err
    assert out.strip()


@pytest.mark.parametrize("refused", ["x" * 300, "/nonsense", "/save .", "/reset now"])
def test_a_pipe_in_which_something_was_refused_ends_with_status_one(folder: Path, refused: str) -> None:
    """A script could not tell that an answer was missing: the status was 0."""
    assert talk(folder, refused, "Hello")[0] == 1
    assert talk(folder, "Hello")[0] == 0


@pytest.mark.parametrize("command", ["/quit", "/exit"])
def test_a_command_ends_the_program(folder: Path, command: str) -> None:
    """Both were no command, and end-of-input was the only way out."""
    assert talk(folder, command, "Hello") == (0, "", "")
    assert command in talk(folder, "/help")[2]


def test_a_message_that_is_no_utf8_is_refused_alone(folder: Path) -> None:
    """It ended the program with a traceback."""
    arguments = ["chat", str(folder), "--max-tokens", "8"]
    result = CliRunner().invoke(app, arguments, input=b"caf\xe9\nHello\n")
    assert result.exit_code == 1
    assert "the message is not UTF-8: byte 0xe9 at character 4" in result.stderr
    assert result.stdout.strip()
    result = CliRunner().invoke(app, [*arguments, "--system", "\udce9"])
    assert "--system is not UTF-8: byte 0xe9 at character 1" in result.stderr


def test_an_answer_may_fill_what_the_context_leaves(model: LanguageModel) -> None:
    """The unasked 512 tokens were refused by a conversation that had room for fewer."""
    conversation = Conversation(model, GenerationSettings(ignore_eos=True), backend="eager")
    prompt = len(model.chat_prompt([{"role": "user", "content": "Hello"}]))
    "".join(conversation.ask("Hello"))
    (cache,) = conversation._session.caches
    assert cache.length == 256 - 1, "the last token of an answer is not fed back"
    assert prompt < 256 - 1
    with pytest.raises(CapacityError, match="leaves no room"):
        "".join(conversation.ask("And then?"))


def test_an_answer_is_of_512_tokens_where_there_is_room(checkpoint: Callable[..., Path]) -> None:
    folder = checkpoint(max_position_embeddings=600)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    model = fuel_core.load(folder)
    conversation = Conversation(model, GenerationSettings(ignore_eos=True), backend="eager")
    prompt = model.chat_prompt([{"role": "user", "content": "Hello"}])
    "".join(conversation.ask("Hello"))
    (cache,) = conversation._session.caches
    assert cache.length == len(prompt) + 512 - 1, "the last token of an answer is not fed back"


def test_a_conversation_that_is_full_names_the_way_out(folder: Path) -> None:
    """It said how many tokens were too many, and not what to do."""
    long = "x" * 220  # of 256 positions, and the template takes some
    status, out, err = talk(folder, long, "Hello", "/reset", "Hello", options=["--temperature", "0"])
    assert status == 1
    assert err.count("error: ") == 1
    assert "leaves no room" in err
    assert "/reset forgets the conversation" in err
    assert len(out.splitlines()) >= 2


def test_ctrl_c_stops_the_answer_and_not_the_program(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ask, calls = Conversation.ask, []

    def interrupted(self: Conversation, text: str) -> object:
        for number, piece in enumerate(ask(self, text)):
            if not calls and number == 2:
                calls.append(text)
                raise KeyboardInterrupt
            yield piece

    monkeypatch.setattr(Conversation, "ask", interrupted)
    saved = tmp_path / "saved.json"
    status, _, _ = talk(folder, "Hello", "Again", f"/save {saved}")
    assert status == 0
    assert [m["role"] for m in json.loads(saved.read_text())] == ["user", "assistant"] * 2


def test_a_checkpoint_without_a_template_is_refused_at_once(checkpoint: Callable[..., Path]) -> None:
    """Inventing a template gives an answer of a model that was never asked."""
    folder = checkpoint()
    status, out, err = talk(folder, "Hello")
    assert (status, out) == (1, "")
    assert "chat template" in err
    with pytest.raises(FuelError, match="chat template"):
        fuel_core.load(folder).chat([{"role": "user", "content": "x"}])
    assert fuel_core.load(folder).generate("x", max_tokens=2).text is not None


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--device", "warp:9"], "device 'warp:9' cannot be used here"),
        (["--option", "window_layers=frist"], "window_layers is 'frist'"),
    ],
)
def test_device_and_options_reach_the_model(folder: Path, options: list[str], named: str) -> None:
    """``fuel chat`` could choose neither, though ``load`` can."""
    status, _, err = talk(folder, "Hello", options=options)
    assert (status, named in " ".join(err.split())) == (1, True), err


@pytest.mark.filterwarnings("default::fuel_core.errors.FuelWarning")
def test_unknown_keys_may_be_allowed(folder: Path) -> None:
    """A checkpoint that ``fuel run`` could be told to load could not be talked with."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "key_of_tomorrow": 1}))
    assert talk(folder, "Hello")[0] == 1
    status, _, err = talk(folder, "Hello", options=["--max-tokens", "8", "--allow-unknown-keys"])
    assert status == 0, err


def test_the_terminal_says_what_a_template_lets_choose(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``false`` is what it is in JSON: as text it would be true."""
    (folder / "chat_template.jinja").write_text(TEMPLATE + "{{ '' if think else '[none]' }}")
    prompts: list[str] = []
    encode = Tokenizer.encode

    def recording(self: Tokenizer, text: str, **options: bool) -> list[int]:
        prompts.append(text)
        return encode(self, text, **options)

    monkeypatch.setattr(Tokenizer, "encode", recording)
    for value in ("true", "false"):
        options = ["--template", f"think={value}", "--max-tokens", "2"]
        assert talk(folder, "Hello", options=options)[0] == 0
    assert [prompt.endswith("[none]") for prompt in prompts] == [False, False, True, True]
    prompts.clear()
    status, _, err = talk(folder, "", options=["--template", "thinking=true"])
    assert (status, "never reads thinking" in " ".join(err.split())) == (1, True)
    assert "is no KEY=VALUE" in talk(folder, "Hello", options=["--template", "think"])[2]
    assert "write false" in talk(folder, "Hello", options=["--template", "think=False"])[2]
    assert prompts == []
