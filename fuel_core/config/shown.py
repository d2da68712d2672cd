"""How a message shows a value of a config.json: whole if it is short, cut if it is not."""

from reprlib import Repr

# A file may hold lists of thousands of entries, or nest deeper than repr can follow.
_REPR = Repr()
_REPR.maxlevel = 3
_REPR.maxdict = _REPR.maxlist = _REPR.maxtuple = 8
_REPR.maxstring = _REPR.maxlong = _REPR.maxother = 80


def shown(value: object) -> str:
    """Return ``repr(value)``, cut in depth, entries and characters."""
    return _REPR.repr(value)
