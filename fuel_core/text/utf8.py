"""Text that UTF-8 can express, and the place where it cannot."""

import re

from fuel_core.errors import RequestError

_SURROGATE = re.compile("[\ud800-\udfff]")


def require_utf8(text: str, name: str) -> str:
    """Return ``text``, which ``name`` calls in the error.

    Python keeps a byte of an argument or a file that is not UTF-8 as a surrogate (``surrogateescape``);
    an escape in JSON may state another one.

    Raises:
        RequestError: the text holds a surrogate.
    """
    found = _SURROGATE.search(text)
    if found is None:
        return text
    code = ord(found[0])
    stray = f"byte 0x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"the lone surrogate U+{code:04X}"
    raise RequestError(f"{name} is not UTF-8: {stray} at character {found.start() + 1}")
