"""What the built distributions hold: fuel-core and every plugin, as wheel and as source archive.

Each wheel is built from the unpacked source archive, so what one lacks the other lacks too. That the
wheels also work where nothing else is installed is checked by ``.ci/run``.
"""

import subprocess
import sys
import tarfile
import tomllib
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

import fuel_core

ROOT = Path(__file__).parents[2]
CORE = ROOT / "fuel_core"
PLUGINS = sorted(path.parent for path in ROOT.glob("plugins/*/src/*/__init__.py"))

LICENCES = ["LICENSE-APACHE", "LICENSE-MIT"]
CHECKPOINT_BYTES = 4_000_000


@dataclass(frozen=True, kw_only=True)
class Built:
    """A project's two archives, unpacked, and the metadata that an installer reads from its wheel."""

    package: Path  # the source folder
    project: Path  # the folder that holds its pyproject.toml
    sdist: Path
    wheel: Path
    metadata: metadata.Distribution

    @property
    def name(self) -> str:
        return self.package.name


@pytest.fixture(scope="module", params=[CORE, *PLUGINS], ids=lambda path: path.name)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    package: Path = request.param
    project = next(folder for folder in package.parents if (folder / "pyproject.toml").exists())
    out = tmp_path_factory.mktemp(package.name)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(project)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr

    with tarfile.open(next(out.glob("*.tar.gz"))) as archive:
        archive.extractall(out / "sdist", filter="data")
    with ZipFile(next(out.glob("*.whl"))) as archive:
        archive.extractall(out / "wheel")
    (sdist,) = (out / "sdist").iterdir()
    (distribution,) = metadata.distributions(path=[str(out / "wheel")])
    return Built(package=package, project=project, sdist=sdist, wheel=out / "wheel", metadata=distribution)


core_alone = pytest.mark.parametrize("built", [CORE], indirect=True, ids=lambda path: path.name)
plugins_alone = pytest.mark.parametrize("built", PLUGINS, indirect=True, ids=lambda path: path.name)


def files_in(folder: Path) -> set[str]:
    files = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    return {path.as_posix() for path in files if "__pycache__" not in path.parts}


def test_the_wheel_holds_the_package_and_nothing_else(built: Built) -> None:
    """The pattern of an ignore file, or a forgotten include, drops a file from the wheel in silence."""
    dist_info = f"{built.name}-{built.metadata.version}.dist-info"
    assert {path.name for path in built.wheel.iterdir()} == {built.name, dist_info}
    assert files_in(built.wheel / built.name) == files_in(built.package)


def test_neither_archive_holds_tests(built: Built) -> None:
    names = {part for file in files_in(built.wheel) | files_in(built.sdist) for part in file.split("/")}
    assert not [name for name in names if name in {"tests", "conftest.py"} or name.startswith("test_")]


def test_the_wheel_is_typed(built: Built) -> None:
    assert (built.wheel / built.name / "py.typed").read_bytes() == b""


def test_both_archives_hold_both_licences(built: Built) -> None:
    assert built.metadata.metadata["License-Expression"] == "MIT OR Apache-2.0"
    assert sorted(built.metadata.metadata.get_all("License-File", [])) == LICENCES
    dist_info = built.wheel / f"{built.name}-{built.metadata.version}.dist-info"
    for licence in LICENCES:
        expected = (ROOT / licence).read_bytes()
        assert (dist_info / "licenses" / licence).read_bytes() == expected
        assert (built.sdist / licence).read_bytes() == expected


def test_the_version_is_the_one_of_its_only_source(built: Built) -> None:
    table = tomllib.loads((built.project / "pyproject.toml").read_text())["project"]
    expected = fuel_core.__version__ if built.package == CORE else table["version"]
    assert built.metadata.version == expected


def test_the_metadata_says_what_it_runs_on(built: Built) -> None:
    assert built.metadata.metadata["Requires-Python"] == ">=3.11"
    assert built.metadata.metadata["Summary"]
    assert built.metadata.metadata.get_payload().strip() == (built.project / "README.md").read_text().strip()


def test_the_metadata_names_the_authors_that_the_licence_names(built: Built) -> None:
    """An index and pip show had no author to show."""
    author = built.metadata.metadata["Author"]
    assert author
    assert f" {author}\n" in (ROOT / "LICENSE-MIT").read_text()


@core_alone
def test_the_core_leaves_room_for_other_versions_of_torch(built: Built) -> None:
    requirements = {item.name: item for item in map(Requirement, built.metadata.requires)}
    assert not [str(item) for item in requirements.values() if "==" in str(item.specifier)]
    pinned = next(
        line for line in (ROOT / "requirements.txt").read_text().split() if line.startswith("torch==")
    )
    assert pinned.removeprefix("torch==") in requirements["torch"].specifier


@core_alone
def test_the_oracle_is_no_dependency_of_the_core(built: Built) -> None:
    requirements = [Requirement(line) for line in built.metadata.requires]
    plain = {item.name for item in requirements if not item.marker or item.marker.evaluate({"extra": ""})}
    testing = {
        item.name for item in requirements if item.marker and item.marker.evaluate({"extra": "testing"})
    }
    assert {"pytest", "transformers"} <= testing
    assert not plain & {"pytest", "transformers"}


@core_alone
def test_the_core_installs_its_command_and_its_conformance_kit(built: Built) -> None:
    assert {(item.group, item.name, item.value) for item in built.metadata.entry_points} == {
        ("console_scripts", "fuel", "fuel_core.cli.app:main"),
        ("pytest11", "fuel", "fuel_core.pytest_plugin"),
    }


@plugins_alone
def test_a_plugin_requires_one_minor_version_of_the_core(built: Built) -> None:
    """Before 1.0 a minor version may change the contract; discovery refuses what is outside this range."""
    (requirement,) = map(Requirement, built.metadata.requires)
    assert requirement == Requirement("fuel-core>=0.1,<0.2")
    assert fuel_core.__version__ in requirement.specifier


@plugins_alone
def test_a_plugin_is_found_by_its_entry_point(built: Built) -> None:
    (entry,) = built.metadata.entry_points
    assert (entry.group, entry.value) == ("fuel", built.name)


@plugins_alone
def test_the_bundled_checkpoint_is_whole_and_small(built: Built) -> None:
    (entry,) = built.metadata.entry_points
    bundled = [card.bundled for card in entry.load().fuel_families() if card.bundled]
    assert bundled, f"{built.name} bundles no checkpoint: `fuel run` has nothing to show without a network"
    for reference in bundled:
        package, _, inside = reference.partition(":")
        folder = built.wheel / package / inside
        missing = {"config.json", "model.safetensors", "tokenizer.json"} - files_in(folder)
        assert not missing
    checkpoints = built.wheel / built.name / "checkpoints"
    assert sum(path.stat().st_size for path in checkpoints.rglob("*") if path.is_file()) <= CHECKPOINT_BYTES
