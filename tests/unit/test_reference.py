"""What a reference names: family, preset, folder or hub repository, in that order."""

from pathlib import Path

import pytest

from fuel_core.discovery import Plugin
from fuel_core.errors import FuelWarning, RequestError, UnknownFamily
from fuel_core.plugin import FamilyCard
from fuel_core.reference import Bundled, Folder, HubRepo, Preset
from fuel_core.registry import Registry

TOY = FamilyCard(
    name="toy",
    model_types=("toy",),
    definition="m:TOY",
    summary="",
    source="",
    aliases=("toy2.5",),
    presets={"0.5b": "Toys/Toy-0.5B", "7b": "Toys/Toy-7B"},
    bundled="fuel_toy:checkpoints/toy",
)
BARE = FamilyCard(name="bare", model_types=("bare",), definition="m:BARE", summary="", source="")
REGISTRY = Registry(
    plugins=(
        Plugin(
            distribution="fuel-toy",
            version="1.0",
            entry_point="plugin",
            requirement=None,
            cards=(TOY, BARE),
            import_seconds=0.0,
            imports_torch=False,
        ),
    )
)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def checkpoint(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    return folder


@pytest.mark.parametrize("name", ["toy", "toy2.5"])
def test_an_installed_name_is_the_bundled_checkpoint(name: str) -> None:
    assert REGISTRY.resolve(name) == Bundled(card=TOY)


def test_a_family_that_carries_no_checkpoint_says_what_to_ask_for() -> None:
    with pytest.raises(RequestError, match=r"'bare' .*carries no checkpoint"):
        REGISTRY.resolve("bare")


@pytest.mark.parametrize("name", ["toy", "toy2.5"])
def test_a_tag_is_a_preset(name: str) -> None:
    assert REGISTRY.resolve(f"{name}:7b") == Preset(card=TOY, tag="7b", repo="Toys/Toy-7B")


@pytest.mark.parametrize("tag", ["14b", "", "7B"])
def test_an_unknown_tag_is_answered_with_the_tags(tag: str) -> None:
    with pytest.raises(RequestError, match=r"toy:0\.5b, toy:7b"):
        REGISTRY.resolve(f"toy:{tag}")


def test_a_tag_of_an_unknown_family_is_answered_with_families() -> None:
    with pytest.raises(UnknownFamily, match=r"'toi'.*closest: toy"):
        REGISTRY.resolve("toi:7b")


@pytest.mark.parametrize("written", ["./x", "../{here}/x", "{here_absolute}/x", ".", "./x/."])
def test_a_path_is_that_folder(here: Path, written: str) -> None:
    checkpoint(here / "x")
    written = written.format(here=here.name, here_absolute=here)
    assert REGISTRY.resolve(written) == Folder(path=Path(written))


def test_a_tilde_is_the_home_folder(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(here))
    folder = checkpoint(here / "x")
    assert REGISTRY.resolve("~/x") == Folder(path=folder)


def test_a_path_object_is_a_folder_even_under_a_familys_name(here: Path) -> None:
    """Path("./toy") is Path("toy"): what forced the folder is gone from its text."""
    checkpoint(here / "toy")
    assert REGISTRY.resolve(Path("./toy")) == Folder(path=Path("toy"))


@pytest.mark.parametrize("written", ["./absent", "~/absent", "~nobody-here/x", "/absent/x"])
def test_a_path_to_nothing_is_an_error_and_no_name(written: str) -> None:
    with pytest.raises(RequestError, match="there is no folder"):
        REGISTRY.resolve(written)


def test_a_path_to_a_file_asks_for_its_folder(here: Path) -> None:
    checkpoint(here / "x")
    with pytest.raises(RequestError, match=r"config\.json is no folder but a file; name the folder .* x$"):
        REGISTRY.resolve("./x/config.json")


@pytest.mark.parametrize("written", ["x/config.json", "x/model.safetensors", "model.safetensors"])
def test_a_file_is_not_looked_for_on_the_hub(here: Path, written: str) -> None:
    """folder/config.json has the form of organisation/name: the hub was asked for it."""
    checkpoint(here / "x")
    (here / "x" / "model.safetensors").touch()
    (here / "model.safetensors").touch()
    with pytest.raises(RequestError, match=f"{written} is no folder but a file; name the folder"):
        REGISTRY.resolve(written)


@pytest.mark.parametrize("written", ["x/model.gguf", "./x/model.gguf"])
def test_a_gguf_file_has_no_folder_to_name(here: Path, written: str) -> None:
    checkpoint(here / "x")
    (here / "x" / "model.gguf").touch()
    with pytest.raises(RequestError, match=r"is no folder but a file; fuel reads no GGUF: take"):
        REGISTRY.resolve(written)


def test_a_plain_name_is_a_folder_if_that_holds_a_config(here: Path) -> None:
    checkpoint(here / "mine")
    checkpoint(here / "runs" / "last")
    checkpoint(here / "a" / "b" / "c")
    for name in ("mine", "runs/last", "a/b/c"):
        assert REGISTRY.resolve(name) == Folder(path=Path(name))


def test_an_installed_name_wins_over_a_folder_and_says_so(here: Path) -> None:
    checkpoint(here / "toy")
    with pytest.warns(FuelWarning, match=r"\./toy is the folder") as warned:
        assert REGISTRY.resolve("toy") == Bundled(card=TOY)
    assert warned[0].filename == __file__
    assert REGISTRY.resolve("./toy") == Folder(path=Path("toy"))


def test_a_folder_that_is_no_checkpoint_does_not_come_into_it(here: Path) -> None:
    """A source checkout has a folder of any name; only one with a config.json is a candidate."""
    (here / "toy").mkdir()
    (here / "Toys" / "Toy-7B").mkdir(parents=True)
    assert REGISTRY.resolve("toy") == Bundled(card=TOY)
    assert REGISTRY.resolve("Toys/Toy-7B") == HubRepo(repo="Toys/Toy-7B")


@pytest.mark.parametrize("repo", ["Qwen/Qwen2.5-0.5B-Instruct", "microsoft/Phi-3_5", "01-ai/Yi"])
def test_organisation_and_name_is_a_hub_repository(repo: str) -> None:
    assert REGISTRY.resolve(repo) == HubRepo(repo=repo)


@pytest.mark.parametrize(
    "written",
    ["a/b/c", "Qwen/", "/".join("ab") + "\n", "https://hub/a/b", "a b/c", "-a/b", "a/b:tag", "a/../b"],
)
def test_what_is_nearly_a_hub_repository_is_none(written: str) -> None:
    with pytest.raises(UnknownFamily, match="hub repository"):
        REGISTRY.resolve(written)


@pytest.mark.parametrize("written", ["", "  "])
def test_an_empty_reference_is_not_the_working_directory(here: Path, written: str) -> None:
    """os.path.join("", "config.json") is a file of the working directory."""
    (here / "config.json").write_text("{}")
    with pytest.raises(RequestError, match="empty"):
        REGISTRY.resolve(written)


@pytest.mark.parametrize("written", ["In the beginning " * 500, "toy\0", "./toy\0", "./" + "x" * 5000])
def test_what_no_file_system_takes_is_an_ordinary_error(written: str) -> None:
    """A prompt given in place of a reference is too long for a path: OSError, not False."""
    with pytest.raises((UnknownFamily, RequestError)):
        REGISTRY.resolve(written)


def test_what_is_there_but_no_checkpoint_is_said(here: Path) -> None:
    (here / "mine").mkdir()
    with pytest.raises(UnknownFamily, match=r"no folder with a config\.json"):
        REGISTRY.resolve("mine")
    (here / "mine" / "model-q4.gguf").touch()
    with pytest.raises(UnknownFamily, match=r"no folder with a config\.json; it has model-q4\.gguf;"):
        REGISTRY.resolve("mine")


@pytest.mark.parametrize("given", [3, None, b"toy", ["toy"]], ids=str)
def test_what_is_no_text_and_no_path_is_refused(given: object) -> None:
    """It ended in a TypeError of os.path."""
    with pytest.raises(RequestError, match=r"names no model; give a family"):
        REGISTRY.resolve(given)  # type: ignore[arg-type]
