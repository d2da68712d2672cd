"""What the files of a checkpoint state for its chat templates.

Source: transformers 5.23: which file wins, and what counts as a special token.
"""

from pathlib import Path
from typing import Any

from fuel_core.errors import TokenizerError
from fuel_core.text.tokenizer import TOKENIZER_CONFIG_FILE
from fuel_core.text.tokenizer_json import read_if_present

DEFAULT = "default"
TEMPLATE_FILE = "chat_template.jinja"
NAMED_TEMPLATES = "additional_chat_templates"
SPECIAL_TOKENS_FILE = "special_tokens_map.json"


def read_templates(folder: Path) -> dict[str, str]:
    """Return the sources of a checkpoint's chat templates by name; none where it has none.

    chat_template.jinja (the default) and additional_chat_templates/NAME.jinja replace, both or either,
    all that tokenizer_config.json has as ``chat_template``.

    Raises:
        TokenizerError: a file is unreadable, or ``chat_template`` is of no known form.
    """
    named = sorted((folder / NAMED_TEMPLATES).glob("*.jinja"))
    paths = {DEFAULT: folder / TEMPLATE_FILE} | {path.stem: path for path in named}
    templates = {name: _read_text(path) for name, path in paths.items() if path.is_file()}
    config_path = folder / TOKENIZER_CONFIG_FILE
    return templates or _stated(read_if_present(config_path).get("chat_template"), config_path)


def read_special_tokens(folder: Path) -> dict[str, str]:
    """Return the texts of the tokens that a checkpoint names, such as ``bos_token``.

    Raises:
        TokenizerError: a file is unreadable.
    """
    config = read_if_present(folder / TOKENIZER_CONFIG_FILE)
    if "added_tokens_decoder" not in config:
        config |= read_if_present(folder / SPECIAL_TOKENS_FILE)  # older checkpoints; it wins there
    tokens = {key: token for key, token in config.items() if key.endswith("_token")}
    if isinstance(extra := config.get("extra_special_tokens"), dict):
        tokens |= extra
    return {key: text for key, token in tokens.items() if (text := _text(token)) is not None}


def _text(token: Any) -> str | None:
    match token:
        case str(text) | {"content": str(text)}:
            return text
    return None  # a flag such as add_bos_token


def _stated(stated: Any, path: Path) -> dict[str, str]:
    match stated:
        case None:
            return {}
        case str():
            return {DEFAULT: stated}
        case dict() if all(isinstance(text, str) for text in stated.values()):
            return stated
        case list():
            templates: dict[str, str] = {}
            for entry in stated:
                name, text = _named(entry, path)
                if name in templates:
                    raise TokenizerError(f"chat_template of {path} has {name!r} twice; keep one of them")
                templates[name] = text
            return templates
    raise TokenizerError(
        f"chat_template of {path} is {stated!r:.200}; a template, or a list of named ones, is expected"
    )


def _named(entry: Any, path: Path) -> tuple[str, str]:
    match entry:
        case {"name": str(name), "template": str(text)}:
            return name, text
    raise TokenizerError(
        f"chat_template of {path} has the entry {entry!r:.200}; an object with strings as `name` and "
        "`template` is expected"
    )


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise TokenizerError(f"{path} cannot be read: {error}") from error
