"""docs/write-a-plugin.md as a reader follows it: its files, installed, found, tested and run."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

from fuel_core import FamilyCard
from fuel_core.family import Family

PAGE = (Path(__file__).parents[2] / "docs" / "write-a-plugin.md").read_text()
PUBLIC = {
    f"fuel_core{part}" for part in ("", ".blocks", ".config", ".errors", ".family", ".plans", ".testing")
}


def files() -> dict[str, str]:
    """The files of the page: path -> text. Blocks of one title are its parts, in order."""
    parts = defaultdict(list)
    for title, text in re.findall(r'^```\w+ title="([^"]+)"\n(.*?)^```$', PAGE, flags=re.M | re.S):
        parts[title].append(text)
    return {path: "\n\n".join(texts) for path, texts in parts.items()}


def commands() -> list[str]:
    """The commands that the page ends with, without their comments."""
    (block,) = re.findall(r"^```bash\n(.*?)^```$", PAGE, flags=re.M | re.S)
    return [re.sub(r"\s+#.*", "", line) for line in block.splitlines()]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reader") / "fuel-example"
    for path, text in files().items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


class Reader:
    """Runs commands in the project, with the plugin installed beside what is installed here."""

    def __init__(self, project: Path, site: Path) -> None:
        self.project, self.site = project, site

    def run(self, *command: str, **env: str) -> str:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        done = subprocess.run(
            command,
            cwd=self.project,
            env={**os.environ, "PATH": path, "PYTHONPATH": str(self.site), "HF_HUB_OFFLINE": "1", **env},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def follow(self, start: str, *more: str) -> str:
        """Run the page's command that starts so, with further arguments."""
        environment = dict(line.split()[1].split("=") for line in commands() if line.startswith("export "))
        (line,) = [line for line in commands() if line.startswith(start)]
        return self.run("bash", "-c", f'{line} "$@"', "bash", *more, **environment)


@pytest.fixture(scope="module")
def reader(project: Path) -> Reader:
    site = project.parent / "site"
    without_network = ("--no-build-isolation", "--no-deps", "--no-index", "--disable-pip-version-check")
    install = ("-m", "pip", "install", "--quiet", *without_network, "--target", str(site), str(project))
    subprocess.run([sys.executable, *install], check=True, capture_output=True, timeout=300)
    return Reader(project, site)


@pytest.fixture
def tiny_llama(reader: Reader, checkpoint: Callable[..., Path]) -> Path:
    """A tiny checkpoint under the name that the page uses, with a tokenizer of its vocabulary."""
    folder = reader.project / "TinyLlama-1.1B"
    make = (
        "import sys; from pathlib import Path; from fuel_core.registry import Registry\n"
        "from fuel_core.testing import Case\n"
        "Case.build(Registry.discover().family('example'), 'llama3').save(Path(sys.argv[1]))"
    )
    reader.run(sys.executable, "-c", make, str(folder))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(checkpoint() / name, folder)
    return folder


def test_the_page_draws_the_files_that_it_holds() -> None:
    (tree,) = re.findall(r"^```text\n(.*?)^```$", PAGE, flags=re.M | re.S)
    drawn = set(re.findall(r"\w+\.(?:py|toml)", tree))
    assert drawn == {Path(path).name for path in files()}


def test_every_field_is_explained() -> None:
    """A field that a reader meets first in an error is one that this page forgot."""
    headings = re.findall(r"^### `(\w+)`", PAGE, flags=re.M)
    assert headings == [field.name for field in fields(Family) if field.name != "name"]
    cells = " ".join(re.findall(r"^\| (`.+?) \|", PAGE, flags=re.M))
    assert re.findall(r"`(\w+)`", cells) == [field.name for field in fields(FamilyCard)]


def test_the_code_uses_public_names_and_is_tidy(project: Path) -> None:
    for path in project.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("fuel_core"):
                assert node.module in PUBLIC, f"{path}:{node.lineno}"
    for command in (("check", "--select=E,F,I,B,UP"), ("format", "--check")):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--isolated", "--line-length=110", str(project)],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout


def test_the_family_is_found_with_its_package(reader: Reader) -> None:
    (family,) = json.loads(reader.follow("fuel families", "--json"))["families"]
    assert (family["name"], family["model_types"]) == ("example", ["llama"])
    assert (family["distribution"], family["version"]) == ("fuel-example", "0.1.0")


@pytest.mark.slow
def test_the_conformance_kit_passes(reader: Reader) -> None:
    out = reader.follow("pytest", "-v", "-W", "error", "-p", "no:cacheprovider", "--color=no")
    passed = re.search(r"(\d+) passed, \d+ skipped in", out)  # skipped: windows, biases, goldens
    assert passed is not None, out
    assert int(passed[1]) > 40
    for name in ("rope_theta is ignored", "the two norms are confused"):
        assert f"test_family_mutation_is_seen[{name}] PASSED" in out


def test_its_checkpoint_is_planned_and_run(reader: Reader, tiny_llama: Path) -> None:
    plan = json.loads(reader.follow("fuel plan", "--json"))
    assert plan["family"] == "example"
    completion = json.loads(reader.follow("fuel run", "--max-tokens", "12", "--json"))
    assert len(completion["token_ids"]) == 12
    assert completion["counters"]["plans"] == 1
