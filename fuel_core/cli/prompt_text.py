"""The prompt of ``fuel run``: an argument, or standard input."""

import sys

from fuel_core.errors import RequestError
from fuel_core.text.utf8 import require_utf8


def prompt_text(argument: str) -> str:
    """The text of a prompt argument; ``-`` reads standard input to its end, whatever lines it has.

    One final newline of standard input is taken off, since ``echo`` and editors put it there.

    Raises:
        RequestError: there is no text, or it is not UTF-8.
    """
    if argument == "-":
        piped = sys.stdin.buffer.read().decode("utf-8", "surrogateescape")
        argument = piped.removesuffix("\n")
    if not argument:
        raise RequestError("the prompt is empty: a continuation needs at least one token")
    return require_utf8(argument, "the prompt")
