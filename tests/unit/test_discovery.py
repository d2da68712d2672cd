"""The discovery loop on entry points made by hand; real distributions are in integration tests."""

from types import SimpleNamespace
from typing import Any

import pytest

from fuel_core.discovery import PluginFailure, discover
from fuel_core.errors import PluginError
from fuel_core.plugin import FamilyCard, hookimpl


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FUEL_PLUGINS", raising=False)
    monkeypatch.delenv("FUEL_STRICT_PLUGINS", raising=False)


def card(name: str, **fields: Any) -> FamilyCard:
    return FamilyCard(
        **{
            "name": name,
            "model_types": (name,),
            "definition": "m:F",
            "summary": "",
            "source": "",
            **fields,
        }
    )


class Provides:
    """A plugin object that provides these cards."""

    def __init__(self, *cards: Any) -> None:
        self.cards = cards

    @hookimpl
    def fuel_families(self) -> list[Any]:
        return list(self.cards)


class Raises:
    """A plugin object whose hook raises this."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    @hookimpl
    def fuel_families(self) -> list[FamilyCard]:
        raise self.error


class EntryPoint:
    """As much of an importlib.metadata.EntryPoint as discovery may use."""

    def __init__(
        self, distribution: str, loads: object, *, name: str = "plugin", requires: tuple[str, ...] = ()
    ) -> None:
        self.name = name
        self.value = f"{distribution}:{name}"
        self.dist = SimpleNamespace(metadata={"Name": distribution, "Version": "1.0"}, requires=requires)
        self.loads = loads
        self.load_count = 0

    def load(self) -> object:
        self.load_count += 1
        if isinstance(self.loads, BaseException):
            raise self.loads
        return self.loads


def only_failure(entry_point: EntryPoint) -> PluginFailure:
    good = [EntryPoint("fuel-a", Provides(card("a"))), EntryPoint("fuel-z", Provides(card("z")))]
    found = discover([good[0], entry_point, good[1]])
    assert [plugin.distribution for plugin in found.plugins] == ["fuel-a", "fuel-z"]
    (failure,) = found.failures
    assert (failure.distribution, failure.version, failure.entry_point) == ("fuel-m", "1.0", "plugin")
    assert failure.remedy
    return failure


class Panic(BaseException):
    """What an extension written in Rust raises: no Exception."""


@pytest.mark.parametrize("error", [ImportError("no m"), SystemExit(3), Panic("no m"), MemoryError("no m")])
def test_whatever_an_import_raises_hides_nobody(error: BaseException) -> None:
    failure = only_failure(EntryPoint("fuel-m", error))
    assert failure.stage == "import"
    assert failure.cause == f"{type(error).__name__}: {error}"
    assert type(error).__name__ in failure.traceback


@pytest.mark.parametrize("error", [ValueError("no m"), SystemExit(3), Panic("no m")])
def test_whatever_a_hook_raises_hides_nobody(error: BaseException) -> None:
    assert only_failure(EntryPoint("fuel-m", Raises(error))).stage == "hook"


def test_an_error_that_cannot_be_printed_hides_nobody() -> None:
    """The quarantine itself must not fail on a plugin's exception class."""

    class Unprintable(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert "Unprintable" in only_failure(EntryPoint("fuel-m", Unprintable())).cause


def test_ctrl_c_is_no_broken_plugin() -> None:
    with pytest.raises(KeyboardInterrupt):
        discover([EntryPoint("fuel-m", KeyboardInterrupt())])


def test_a_hook_with_an_argument_that_this_core_lacks() -> None:
    class Newer:
        @hookimpl
        def fuel_families(self, engine: object) -> list[FamilyCard]:
            return []

    failure = only_failure(EntryPoint("fuel-m", Newer()))
    assert failure.stage == "registration"
    assert "engine" in failure.cause


def test_a_misspelt_hook() -> None:
    class Misspelt:
        @hookimpl
        def fuel_familys(self) -> list[FamilyCard]:
            return []

    failure = only_failure(EntryPoint("fuel-m", Misspelt()))
    assert failure.stage == "registration"
    assert "fuel_familys" in failure.cause


def test_a_hook_without_its_mark() -> None:
    class Unmarked:
        def fuel_families(self) -> list[FamilyCard]:
            return []

    failure = only_failure(EntryPoint("fuel-m", Unmarked()))
    assert failure.stage == "registration"
    assert "@hookimpl" in failure.cause


def test_a_plugin_object_that_compares_or_hashes_badly_hides_nobody() -> None:
    class Hostile(Provides):
        __hash__ = None

        def __eq__(self, other: object) -> bool:
            raise RuntimeError

    found = discover([EntryPoint("fuel-a", Hostile(card("a"))), EntryPoint("fuel-b", Provides(card("b")))])
    assert [plugin.distribution for plugin in found.plugins][-1] == "fuel-b"
    assert not [failure for failure in found.failures if failure.distribution == "fuel-b"]


@pytest.mark.parametrize(
    ("answer", "named"),
    [(None, "None"), ("qwen2", "str"), ({"qwen2": 1}, "dict"), (["qwen2"], "str"), ([{}], "dict")],
)
def test_what_is_no_list_of_cards(answer: object, named: str) -> None:
    class Answers:
        @hookimpl
        def fuel_families(self) -> object:
            return answer

    failure = only_failure(EntryPoint("fuel-m", Answers()))
    assert failure.stage == "cards"
    assert f"returned {named}" in failure.cause or f"returned a {named}" in failure.cause


def test_one_plugin_that_claims_a_name_twice() -> None:
    failure = only_failure(EntryPoint("fuel-m", Provides(card("m"), card("m2", aliases=("m",)))))
    assert failure.stage == "cards"
    assert "name 'm' twice" in failure.cause


@pytest.mark.parametrize(
    "requires",
    [
        ("fuel-core>=99",),
        ("Fuel_Core<0.1",),
        ("torch>=2", "fuel-core (>=99)"),
        ('fuel-core>=99; python_version >= "3"',),
        ("fuel-core>=0.1", "fuel-core<0.0.1"),
        ("fuel-core>>99",),
    ],
)
def test_a_plugin_for_another_core_is_not_imported(requires: tuple[str, ...]) -> None:
    entry_point = EntryPoint("fuel-m", Provides(card("m")), requires=requires)
    failure = only_failure(entry_point)
    assert failure.stage == "requirement"
    assert entry_point.load_count == 0


@pytest.mark.parametrize(
    ("requires", "kept"),
    [
        ((), None),
        (("torch>=2", "fuel-core-extras>=99"), None),
        (("fuel-core",), "any version"),
        (("fuel-core<1",), "<1"),
        (("fuel-core @ file:///somewhere",), "any version"),
        (('fuel-core>=99; extra == "test"',), None),
        (('fuel-core>=99; python_version < "3"',), None),
        (("an unreadable >>> line", "fuel-core<1"), "<1"),
    ],
)
def test_what_a_plugin_may_ask_of_this_core(requires: tuple[str, ...], kept: str | None) -> None:
    found = discover([EntryPoint("fuel-m", Provides(card("m")), requires=requires)])
    assert [plugin.requirement for plugin in found.plugins] == [kept]


def test_a_prerelease_of_the_core_satisfies_a_plain_requirement(monkeypatch: pytest.MonkeyPatch) -> None:
    """packaging leaves prereleases out unless it is told otherwise: every plugin would be refused."""
    monkeypatch.setattr("fuel_core.__version__", "0.3.0.dev4")
    entry_point = EntryPoint("fuel-m", Provides(card("m")), requires=("fuel-core>=0.2",))
    assert len(discover([entry_point]).plugins) == 1


def test_one_object_under_two_entry_points_is_one_plugin() -> None:
    plugin = Provides(card("m"))
    found = discover([EntryPoint("fuel-m", plugin, name="b"), EntryPoint("fuel-m", plugin, name="a")])
    assert [found_plugin.entry_point for found_plugin in found.plugins] == ["a"]
    assert found.failures == ()


def test_one_broken_object_under_two_entry_points_is_reported_once() -> None:
    plugin = Raises(ValueError())
    assert len(discover([EntryPoint("fuel-a", plugin), EntryPoint("fuel-b", plugin)]).failures) == 1


@pytest.mark.parametrize("allow", [("fuel-a",), ("FUEL_A",), ("first",)])
def test_the_allow_list_takes_distributions_and_entry_points(allow: tuple[str, ...]) -> None:
    left_out = EntryPoint("fuel-b", Provides(card("b")))
    found = discover([EntryPoint("fuel-a", Provides(card("a")), name="first"), left_out], allow=allow)
    assert [plugin.distribution for plugin in found.plugins] == ["fuel-a"]
    assert found.excluded == ("fuel-b 1.0",)
    assert left_out.load_count == 0


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, ["fuel-a", "fuel-b"]),
        ("", []),
        ("fuel-b", ["fuel-b"]),
        (" fuel-b , fuel-a,", ["fuel-a", "fuel-b"]),
    ],
)
def test_the_allow_list_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, value: str | None, expected: list[str]
) -> None:
    if value is not None:
        monkeypatch.setenv("FUEL_PLUGINS", value)
    found = discover([EntryPoint("fuel-b", Provides(card("b"))), EntryPoint("fuel-a", Provides(card("a")))])
    assert [plugin.distribution for plugin in found.plugins] == expected
    assert found.failures == ()


def test_a_name_in_the_allow_list_that_nothing_has_is_reported() -> None:
    found = discover([EntryPoint("fuel-a", Provides(card("a")))], allow=("fuel-a", "fuel-absent"))
    (failure,) = found.failures
    assert (failure.stage, failure.distribution, failure.version) == ("allow list", "fuel-absent", None)
    assert "fuel-a" in failure.cause
    assert "pip install fuel-absent" in failure.remedy
    assert len(found.plugins) == 1


@pytest.mark.parametrize("value", ["1", "true"])
def test_strict_raises_the_failure_with_its_cause(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("FUEL_STRICT_PLUGINS", value)
    cause = ImportError("no m")
    with pytest.raises(PluginError, match=r"fuel-m 1\.0 .*no m") as caught:
        discover([EntryPoint("fuel-m", cause)])
    assert caught.value.__cause__ is cause
    with pytest.raises(PluginError, match="fuel-absent"):
        discover([], allow=("fuel-absent",))


@pytest.mark.parametrize("value", ["", "0", "false"])
def test_strict_can_be_switched_off(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("FUEL_STRICT_PLUGINS", value)
    assert len(discover([EntryPoint("fuel-m", ImportError())]).failures) == 1


def test_the_argument_beats_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUEL_STRICT_PLUGINS", "1")
    monkeypatch.setenv("FUEL_PLUGINS", "")
    found = discover([EntryPoint("fuel-m", ImportError())], allow=("fuel-m",), strict=False)
    assert len(found.failures) == 1
