"""Names and model types to families: what is found, and what a user is told when nothing is."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fuel_core.discovery import Plugin, PluginFailure
from fuel_core.errors import FamilyClash, PluginError, UnknownFamily
from fuel_core.plugin import FamilyCard
from fuel_core.registry import Registry


def card(name: str, **fields: Any) -> FamilyCard:
    defaults = {"model_types": (name,), "definition": "toy_module:TOY", "summary": "", "source": ""}
    return FamilyCard(**{"name": name, **defaults, **fields})


def plugin(distribution: str, *cards: FamilyCard) -> Plugin:
    return Plugin(
        distribution=distribution,
        version="1.0",
        entry_point="plugin",
        requirement=None,
        cards=cards,
        import_seconds=0.0,
        imports_torch=False,
    )


def failure(distribution: str, cause: str = "ImportError: no m") -> PluginFailure:
    return PluginFailure(
        distribution=distribution,
        version="1.0",
        entry_point="plugin",
        stage="import",
        cause=cause,
        traceback="",
        remedy=f"pip install --upgrade {distribution}",
    )


def test_a_name_an_alias_and_a_model_type_find_their_family() -> None:
    toy, other = card("toy", aliases=("toy2",), model_types=("toy", "toy_moe")), card("other")
    registry = Registry(plugins=(plugin("fuel-other", other), plugin("fuel-toy", toy)))
    assert registry.card("toy") is registry.card("toy2") is toy
    assert registry.card_for_model_type("toy_moe") is toy
    assert registry.provider(toy).distribution == "fuel-toy"
    assert registry.cards == (other, toy)
    assert registry.names == ("other", "toy", "toy2")


def test_a_model_type_is_no_name_and_a_name_no_model_type() -> None:
    registry = Registry(plugins=(plugin("fuel-toy", card("toy", model_types=("toy_type",))),))
    with pytest.raises(UnknownFamily):
        registry.card("toy_type")
    with pytest.raises(UnknownFamily):
        registry.card_for_model_type("toy")


CLASHING = Registry(
    plugins=(
        plugin("fuel-a", card("toy", aliases=("x",), model_types=("m",)), card("only-a")),
        plugin("fuel-b", card("x", model_types=("m", "n"))),
    )
)


@pytest.mark.parametrize(
    "ask",
    [
        lambda: CLASHING.card("x"),
        lambda: CLASHING.card_for_model_type("m"),
        lambda: CLASHING.resolve("x"),
        lambda: CLASHING.resolve("x:0.5b"),
    ],
)
def test_a_clash_names_both_when_what_both_claim_is_asked_for(ask: Any) -> None:
    with pytest.raises(FamilyClash, match=r"fuel-a 1\.0 and fuel-b 1\.0"):
        ask()


def test_a_clash_harms_nothing_else() -> None:
    assert CLASHING.card("toy").name == "toy"
    assert CLASHING.card("only-a").name == "only-a"
    assert CLASHING.card_for_model_type("n").name == "x"
    assert {(clash.kind, clash.claimed) for clash in CLASHING.clashes} == {("name", "x"), ("model_type", "m")}


def message(registry: Registry, name: str) -> str:
    with pytest.raises(UnknownFamily) as caught:
        registry.card(name)
    return str(caught.value)


def model_type_message(registry: Registry, model_type: str) -> str:
    with pytest.raises(UnknownFamily) as caught:
        registry.card_for_model_type(model_type)
    return str(caught.value)


def test_an_unknown_name_is_answered_with_what_resembles_it() -> None:
    registry = Registry(plugins=(plugin("fuel-toy", card("qwen2", aliases=("qwen2.5",)), card("phi3")),))
    told = message(registry, "Qwen2_5")
    assert "'Qwen2_5'" in told
    assert "closest: qwen2.5, qwen2" in told
    assert "phi3" not in told


def test_an_unknown_name_that_resembles_nothing_is_answered_with_everything() -> None:
    assert "installed: phi3, qwen2" in message(
        Registry(plugins=(plugin("fuel-toy", card("qwen2"), card("phi3")),)), "zzzz"
    )
    assert "no family is installed" in message(Registry(plugins=()), "zzzz")


@pytest.mark.parametrize(
    ("model_type", "package"),
    [
        *[(model_type, "fuel-llama") for model_type in ("llama", "mistral", "smollm3")],
        *[(model_type, "fuel-qwen") for model_type in ("qwen2", "qwen3", "qwen2_moe", "qwen3_moe")],
        *[(model_type, "fuel-phi") for model_type in ("phi", "phi3", "phimoe")],
        *[(model_type, "fuel-deepseek") for model_type in ("deepseek_v2", "deepseek_v3")],
    ],
)
def test_an_absent_family_is_answered_with_its_package(model_type: str, package: str) -> None:
    assert f"pip install {package} " in model_type_message(Registry(plugins=()), model_type)
    assert f"pip install {package} " in message(Registry(plugins=()), model_type)


def test_a_model_type_that_nobody_knows_says_how_to_write_a_plugin() -> None:
    told = model_type_message(Registry(plugins=()), "rwkv")
    assert "'rwkv'" in told
    assert "no known package" in told
    assert "pydoc fuel_core.plugin" in told


def test_a_package_that_is_installed_but_broken_says_why() -> None:
    """'pip install fuel-phi' is no answer to someone who has installed it."""
    registry = Registry(plugins=(), failures=(failure("fuel_phi"), failure("fuel-other")))
    for told in (message(registry, "phi3"), model_type_message(registry, "phi3")):
        assert "fuel_phi 1.0" in told
        assert "ImportError: no m" in told
        assert "pip install --upgrade fuel_phi" in told
        assert "pip install fuel-phi " not in told
        assert "fuel-other 1.0" in told  # it cannot say what it provides, so it stays a suspect


def test_a_broken_plugin_that_no_catalogue_knows_is_found_by_how_it_sounds() -> None:
    told = message(Registry(plugins=(), failures=(failure("fuel-rwkv"),)), "rwkv7")
    assert "fuel-rwkv 1.0 may provide it" in told
    assert "ImportError: no m" in told


def test_a_package_that_the_allow_list_leaves_out_is_not_to_be_installed() -> None:
    told = message(Registry(plugins=(), excluded=("fuel-phi 1.0",)), "phi3")
    assert "FUEL_PLUGINS" in told
    assert "pip install" not in told


def test_a_package_that_is_too_old_is_to_be_upgraded() -> None:
    told = message(Registry(plugins=(plugin("fuel-phi", card("phi")),)), "phi3")
    assert "pip install --upgrade fuel-phi" in told


@pytest.fixture
def toy_module(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    module = SimpleNamespace(TOY=SimpleNamespace(name="toy"), OTHER=SimpleNamespace(name="other"))
    monkeypatch.setitem(sys.modules, "toy_module", module)
    return module


def registry_of(**fields: Any) -> Registry:
    return Registry(plugins=(plugin("fuel-toy", card("toy", **fields)),))


def test_the_definition_is_imported_when_it_is_asked_for(toy_module: SimpleNamespace) -> None:
    assert registry_of(aliases=("t",)).family("t") is toy_module.TOY


@pytest.mark.parametrize(
    ("definition", "cause"),
    [
        ("absent_module:TOY", "ModuleNotFoundError"),
        ("toy_module:ABSENT", "AttributeError"),
        ("toy_module:OTHER", "called 'other'"),
        ("sys:path", "a list called None"),
    ],
)
@pytest.mark.usefixtures("toy_module")
def test_a_definition_that_is_none_names_plugin_definition_and_cause(definition: str, cause: str) -> None:
    with pytest.raises(PluginError) as caught:
        registry_of(definition=definition).family("toy")
    for part in ("fuel-toy 1.0", repr(definition), "'toy'", cause):
        assert part in str(caught.value)


def test_a_definition_that_ends_the_process_is_an_error_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "toy_exits.py").write_text("raise SystemExit(3)")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PluginError, match="SystemExit: 3"):
        registry_of(definition="toy_exits:TOY").family("toy")


@pytest.fixture
def toy_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "toy_package_with_data"
    (folder / "checkpoints" / "toy").mkdir(parents=True)
    (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    sys.modules.pop("toy_package_with_data", None)


def test_the_bundled_folder_is_found_in_its_package(toy_package: Path) -> None:
    registry = registry_of(bundled="toy_package_with_data:checkpoints/toy")
    assert registry.bundled_folder(registry.card("toy")) == toy_package / "checkpoints" / "toy"


@pytest.mark.parametrize(
    ("bundled", "told"),
    [
        ("toy_package_with_data:checkpoints/lost", "--force-reinstall fuel-toy"),
        ("toy_package_with_data:__init__.py", "no folder"),
        ("toy_package_absent:checkpoints/toy", "toy_package_absent"),
        (None, "no checkpoint"),
    ],
)
@pytest.mark.usefixtures("toy_package")
def test_a_bundled_folder_that_is_missing_says_whose_it_is(bundled: str | None, told: str) -> None:
    registry = registry_of(bundled=bundled)
    with pytest.raises(PluginError, match=r"fuel-toy 1\.0") as caught:
        registry.bundled_folder(registry.card("toy"))
    assert told in str(caught.value)
