"""Stop strings that begin in one token and end in another."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuel_core.errors import RequestError
from fuel_core.generate.stop_text import StopText


def run(pieces: list[str], stops: list[str]) -> tuple[list[str], bool]:
    """What each piece releases, with what the end releases last, and whether a stop was met."""
    text = StopText(stops)
    return [*(text.push(piece) for piece in pieces), text.flush()], text.stopped


@pytest.mark.parametrize(
    ("pieces", "stops", "wanted", "stopped"),
    [
        (["The quick br", "own", " fox jumps"], ["own fox"], "The quick br", True),
        (["DEF", "G", "HI", "J"], ["DEFGHIJ"], "", True),
        (["DEF", "G", "X"], ["DEFGHIJ"], "DEFGX", False),
        (["one two three"], ["two"], "one ", True),
        (["ab", "abc"], ["abc"], "ab", True),
        (["aab"], ["ab"], "a", True),
        (["xabc"], ["abc", "ab"], "x", True),
        (["hold me sto"], ["stop"], "hold me sto", False),
        (["plain"], [], "plain", False),
    ],
)
def test_text_before_the_first_stop(pieces: list[str], stops: list[str], wanted: str, stopped: bool) -> None:
    released, met = run(pieces, stops)
    assert "".join(released) == wanted
    assert met is stopped


def test_only_what_may_become_a_stop_is_held() -> None:
    """Holding more made streams stutter; flushing less lost text at the end."""
    text = StopText(["own fox"])
    assert text.push("The quick br") == "The quick br"
    assert text.push("own") == ""
    assert text.push(" dog") == "own dog"


def test_an_empty_stop_is_refused() -> None:
    with pytest.raises(RequestError, match="empty"):
        StopText(["a", ""])


@given(
    text=st.text("ab", max_size=30),
    stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    cuts=st.lists(st.integers(0, 30), max_size=8),
)
def test_any_cut_gives_the_same(text: str, stops: list[str], cuts: list[int]) -> None:
    """However text is dealt to tokens, the result is what a scan of the whole text gives."""
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    released, met = run([text[a:b] for a, b in pairwise(edges)], stops)
    ends = [end for end in range(len(text) + 1) if any(text[:end].endswith(stop) for stop in stops)]
    if not ends:
        assert ("".join(released), met) == (text, False)
        return
    first = min(ends)
    longest = max((stop for stop in stops if text[:first].endswith(stop)), key=len)
    assert ("".join(released), met) == (text[: first - len(longest)], True)
