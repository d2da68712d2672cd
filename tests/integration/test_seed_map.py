"""The map of the specification names every item, and only tests and faults that exist."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from fuel_core.registry import Registry
from fuel_core.testing.mutations import CORE_MUTATIONS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "seed-map.md").read_text()
SECTIONS = {
    title.split(":")[0]: text for title, text in re.findall(r"^## (.+)\n((?:(?!## ).*\n)*)", PAGE, re.M)
}
REFERENCE = re.compile(r"`([\w/.-]+\.py)::([\w:]+)`")
FAULT = re.compile(r"(?<!\*)\*([^*]+)\*(?!\*)")


def rows(section: str) -> list[list[str]]:
    """The cells of a section's table, row by row, without its head."""
    lines = [line for line in SECTIONS[section].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@cache
def definitions(path: str) -> frozenset[str]:
    """The functions of a file, and the methods of its classes as ``Class::method``."""
    if not (ROOT / path).is_file():
        return frozenset()
    found = set()
    for node in ast.parse((ROOT / path).read_text()).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)}
    return frozenset(found)


def faults() -> set[str]:
    """The names of all faults that tests apply: core mutations, families' own, broken promises."""
    registry = Registry.discover()
    own = {mutation.name for card in registry.cards for mutation in registry.definition(card).mutations}
    tree = ast.parse((ROOT / "tests" / "unit" / "test_invariants.py").read_text())
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name("FAULTS")], value=ast.Dict(keys=keys)):
                broken = {key.value for key in keys if isinstance(key, ast.Constant)}
    return {mutation.name for mutation in CORE_MUTATIONS} | own | broken


@pytest.mark.parametrize("document", ["000", "002", "003"])
def test_every_item_has_its_row(document: str) -> None:
    (items,) = re.findall(r"<!-- lines: (.*) -->", SECTIONS[document])
    assert [row[0] for row in rows(document)] == items.split()


@pytest.mark.parametrize("document", ["000", "002", "003"])
def test_every_item_is_shown_by_something(document: str) -> None:
    """Without a test an item is a claim."""
    assert [
        row[0] for row in rows(document) if not REFERENCE.search(row[3]) and not FAULT.search(row[3])
    ] == []


def test_every_named_test_exists() -> None:
    named = set(REFERENCE.findall(PAGE))
    assert len(named) > 80
    missing = [f"{path}::{name}" for path, name in sorted(named) if name not in definitions(path)]
    assert not missing, "\n".join(missing)


def test_every_named_fault_exists() -> None:
    cells = [cell for section in SECTIONS for row in rows(section) for cell in row]
    named = {fault for cell in cells for fault in FAULT.findall(cell)}
    assert len(named) > 30
    assert sorted(named - faults()) == []


def test_every_invariant_has_a_check_and_a_fault() -> None:
    table = rows("Invariants")
    assert [row[0] for row in table] == [str(number) for number in range(1, 14)]
    assert [row[0] for row in table if not REFERENCE.search(row[2]) or not FAULT.search(row[3])] == []
