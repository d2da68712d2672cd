"""Rules for the repository itself: names, printing, requirements, and a README that CI runs."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fuel_core import FamilyCard

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
CI = (ROOT / ".ci" / "run").read_text()
PLUGINS = sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))

NAMES_THAT_SAY_NOTHING = {"base", "common", "helper", "helpers", "misc", "util", "utils"}


def python_files(*folders: str) -> list[Path]:
    files = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    assert files, f"no Python file under {folders}: this test reads the wrong folder"
    return files


def fenced_blocks(language: str) -> list[tuple[str, str]]:
    """The README's blocks in ``language``, each with the line above its fence."""
    return re.findall(rf"^([^\n]*)\n```{language}\n(.*?)\n```$", README, flags=re.MULTILINE | re.DOTALL)


def test_every_file_is_named_by_what_it_holds() -> None:
    files = python_files("fuel_core", "plugins", "tests", "benchmarks", "training")
    named = {path: {part.removesuffix(".py") for part in path.relative_to(ROOT).parts} for path in files}
    assert not [str(path) for path, parts in named.items() if parts & NAMES_THAT_SAY_NOTHING]


def test_test_files_have_names_of_their_own() -> None:
    """pytest prints and selects by file name; two of one name hide which one failed."""
    names = [path.name for path in python_files("tests", "plugins") if path.name.startswith("test_")]
    assert sorted(set(names)) == sorted(names)


def test_only_the_command_line_prints() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in python_files("fuel_core", *(str(folder / "src") for folder in PLUGINS))
        if ROOT / "fuel_core" / "cli" not in path.parents
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert not found


def test_the_readme_counts_the_lines_of_the_hot_path() -> None:
    """It once said 2,900 of what had become 3,400, and had left the operations out."""
    files = [path for folder in ("decode", "ops", "blocks") for path in python_files(f"fuel_core/{folder}")]
    files += [ROOT / "fuel_core" / name for name in ("cache.py", "step.py", "rotary.py")]
    lines = sum(len(path.read_text().splitlines()) for path in files if path.parent.name != "triton")
    stated = re.search(r"is about ([\d,]+) lines beside its Triton kernels", README)
    assert stated is not None
    assert abs(int(stated[1].replace(",", "")) - lines) < 250, f"it is {lines}"


def test_a_fresh_clone_installs_the_core_and_every_plugin() -> None:
    lines = (ROOT / "requirements.txt").read_text().split("\n")
    assert {line for line in lines if line.startswith("-e ")} == {
        "-e .",
        *(f"-e {folder.relative_to(ROOT)}" for folder in PLUGINS),
    }


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-test.txt"])
def test_requirements_are_exact_and_name_no_index(name: str) -> None:
    """An index option, a file path or a range makes a clone depend on the machine or the day."""
    allowed = re.compile(r"[a-z0-9-]+==[0-9][0-9.]*|-r requirements\.txt|-e \.|-e plugins/fuel-[a-z]+")
    lines = (ROOT / name).read_text().splitlines()
    assert [line for line in lines if not allowed.fullmatch(line)] == []


@pytest.mark.parametrize("licence", ["LICENSE-MIT", "LICENSE-APACHE"])
@pytest.mark.parametrize("project", PLUGINS, ids=lambda path: path.name)
def test_a_plugin_carries_the_licences_of_the_repository(project: Path, licence: str) -> None:
    assert (project / licence).read_bytes() == (ROOT / licence).read_bytes()


def test_every_command_of_the_readme_is_one_that_ci_runs() -> None:
    above_the_fences = {above for above, _ in fenced_blocks("bash")}
    run_by_ci = re.findall(r"^run_readme_command (\w+)$", CI, flags=re.MULTILINE)
    assert above_the_fences == {f"<!-- command: {name} -->" for name in run_by_ci}


def test_ci_reads_the_commands_that_the_readme_shows() -> None:
    """The shell function of .ci/run, run alone, prints each block word for word."""
    function = re.search(r"^readme_command\(\) \{.*?^\}$", CI, flags=re.MULTILINE | re.DOTALL)[0]
    for above, command in fenced_blocks("bash"):
        name = above.split()[2]
        shell = ["bash", "-c", f"{function}\nreadme_command {name}"]
        printed = subprocess.run(shell, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        assert printed == command + "\n"


def test_the_snippet_of_the_readme_runs() -> None:
    snippet = next(code for _, code in fenced_blocks("python") if "fuel_core.load" in code)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", snippet],
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    *text, plans = done.stdout.splitlines()
    assert text
    assert plans == "1"


def test_the_card_of_the_readme_is_valid() -> None:
    snippet = next(code for _, code in fenced_blocks("python") if "hookimpl" in code)
    namespace: dict[str, Any] = {}
    exec(snippet, namespace)
    (card,) = namespace["fuel_families"]()
    assert isinstance(card, FamilyCard)
    assert set(card.model_types) == {card.name}


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_lead_somewhere(page: str) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / page).read_text())
    assert [target for target in targets if not (ROOT / target).exists()] == []
