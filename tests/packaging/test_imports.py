"""Who may import whom, read from the source of fuel_core and of every plugin in the repository.

All imports count, also those inside functions and ``import_module`` with a literal name. The only
exemption is ``if TYPE_CHECKING:`` within fuel_core: it runs nothing, so it can neither close a cycle
nor load torch, and lets a lower layer name the type of an argument that it is handed.
"""

import ast
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
CORE = ROOT / "fuel_core"
PLUGINS = {path.parent.name: path.parent for path in sorted(ROOT.glob("plugins/*/src/*/__init__.py"))}

# A module may import from its own layer, without cycles, and from the layers before it.
LAYERS = (
    (
        *("errors", "plugin", "advice", "catalogue", "foreign_format", "installed"),
        *("discovery", "reference", "registry"),
    ),
    ("config", "plans"),
    ("cache", "ops", "rotary", "step"),
    ("blocks",),
    ("weights", "family"),
    ("decode",),
    ("text", "generate"),
    ("loading", "model"),
    ("inspection",),
    ("cli", "testing"),
    ("pytest_plugin",),
)
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
PUBLIC = {f"fuel_core{part}" for part in ("", ".blocks", ".config", ".errors", ".family", ".plans")}


@dataclass(frozen=True, kw_only=True)
class Import:
    """``module`` is imported; ``name`` is what is taken out of it, None for the module itself."""

    module: str
    name: str | None
    line: int


def read_imports(source: str, *, package: str, type_checking: bool = False) -> Iterator[Import]:
    """Every import of ``source``, relative ones resolved against ``package``."""
    skipped: set[ast.AST] = set()
    for node in ast.walk(ast.parse(source)):  # breadth first: an `if` comes before what it holds
        match node:
            case _ if node in skipped:
                skipped.update(ast.iter_child_nodes(node))
            case ast.If(test=ast.Name("TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
                skipped.update([] if type_checking else node.body)
            case ast.Import():
                yield from (Import(module=alias.name, name=None, line=node.lineno) for alias in node.names)
            case ast.ImportFrom():
                parents = package.split(".")[: package.count(".") + 2 - node.level] if node.level else []
                module = ".".join([*parents, *filter(None, [node.module])])
                yield from (Import(module=module, name=alias.name, line=node.lineno) for alias in node.names)
            case ast.Call(func=ast.Name("import_module") | ast.Attribute(attr="import_module")):
                if node.args and isinstance(name := node.args[0], ast.Constant):
                    yield Import(module=name.value, name=None, line=node.lineno)


def imports_under(folder: Path, *, type_checking: bool = False) -> Iterator[tuple[Path, Import]]:
    for path in sorted(folder.rglob("*.py")):
        package = ".".join(path.parent.relative_to(folder.parent).parts)
        for item in read_imports(path.read_text(), package=package, type_checking=type_checking):
            yield path, item


def group(path: Path) -> str:
    """The part of fuel_core that ``path`` belongs to: ``plans`` for fuel_core/plans/mask.py."""
    return path.relative_to(CORE).parts[0].removesuffix(".py")


def imported_group(item: Import) -> str | None:
    """The part of fuel_core that ``item`` reaches; None outside fuel_core and for the face's own names."""
    module = item.module
    if module == "fuel_core" and item.name is not None:
        face = read_imports((CORE / "__init__.py").read_text(), package="fuel_core", type_checking=True)
        re_exported = {name.name: name.module for name in face}
        module = re_exported.get(item.name, f"fuel_core.{item.name}" if item.name in RANK else module)
    root, _, rest = module.partition(".")
    return rest.split(".")[0] or None if root == "fuel_core" else None


def core_edges() -> Iterator[tuple[Path, int, str, str]]:
    for path, item in imports_under(CORE):
        target = imported_group(item)
        if path != CORE / "__init__.py" and target is not None and target != group(path):
            yield path.relative_to(ROOT), item.line, group(path), target


def test_every_module_of_the_core_has_a_layer() -> None:
    assert {group(path) for path in CORE.rglob("*.py")} - {"__init__"} <= RANK.keys()


def test_the_core_imports_one_way() -> None:
    edges = list(core_edges())
    assert edges, "found no import inside fuel_core: this test reads the wrong folder"
    upward = [f"{path}:{line}: {a} imports {b}" for path, line, a, b in edges if RANK[b] > RANK[a]]
    assert not upward, "\n".join(upward)


def test_no_layer_holds_a_cycle() -> None:
    graph: dict[str, set[str]] = {}
    for _, _, source, target in core_edges():
        graph.setdefault(source, set()).add(target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail("import cycle: " + " -> ".join(error.args[1]))


def test_the_face_imports_only_the_lowest_layer() -> None:
    face = read_imports((CORE / "__init__.py").read_text(), package="fuel_core")
    assert {imported_group(item) for item in face} - {None} <= set(LAYERS[0])


def test_the_core_imports_no_plugin() -> None:
    assert PLUGINS
    found = [
        f"{path.relative_to(ROOT)}:{item.line}: {item.module}"
        for path, item in imports_under(CORE, type_checking=True)
        if item.module.partition(".")[0] in PLUGINS
    ]
    assert not found, "\n".join(found)


def exported(module: str) -> set[str] | None:
    """The ``__all__`` of a module of fuel_core, or None where it has none."""
    path = ROOT.joinpath(*module.split("."))
    source = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text()
    for node in ast.parse(source).body:
        match node:
            case ast.Assign(targets=[ast.Name("__all__")]):
                return set(ast.literal_eval(node.value))
    return None


def why_not_public(item: Import) -> str | None:
    """Why a plugin may not have this import of fuel_core, or None if it may."""
    if item.module not in PUBLIC:
        return f"{item.module} is internal; take it from one of {', '.join(sorted(PUBLIC))}"
    if item.name is None or f"{item.module}.{item.name}" in PUBLIC:
        return None
    if item.name.startswith("_") or item.name not in (exported(item.module) or {item.name}):
        return f"{item.module} does not export {item.name}"
    return None


@pytest.mark.parametrize("package", PLUGINS.values(), ids=lambda path: path.name)
def test_a_plugin_imports_only_public_names_of_the_core(package: Path) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{item.line}: {reason}"
        for path, item in imports_under(package, type_checking=True)
        if item.module.partition(".")[0] == "fuel_core" and (reason := why_not_public(item))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("package", PLUGINS.values(), ids=lambda path: path.name)
def test_a_plugin_imports_no_other_plugin(package: Path) -> None:
    others = PLUGINS.keys() - {package.name}
    project = package.parents[1]  # its tests too
    found = [
        f"{path.relative_to(ROOT)}:{item.line}: {item.module}"
        for path, item in imports_under(project, type_checking=True)
        if item.module.partition(".")[0] in others
    ]
    assert not found, "\n".join(found)


def declared(project: Path) -> set[str]:
    """The import names of a project's requirements: the distributions' names with underscores."""
    table = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    extras = table.get("optional-dependencies", {}).values()
    names = [Requirement(line).name for line in chain(table["dependencies"], *extras)]
    return {name.replace("-", "_") for name in names}


@pytest.mark.parametrize("package", [CORE, *PLUGINS.values()], ids=lambda path: path.name)
def test_what_a_package_imports_is_declared(package: Path) -> None:
    """A dependency that only another dependency brings is missing the day that one drops it.

    A plugin counts as declared what fuel-core requires: it must run on the very torch and pydantic
    that the core runs on, so it states no range of its own.
    """
    project = next(folder for folder in package.parents if (folder / "pyproject.toml").exists())
    known = declared(project) | declared(ROOT) | set(sys.stdlib_module_names) | {package.name}
    found = {
        f"{path.relative_to(ROOT)}:{item.line}: {item.module}"
        for path, item in imports_under(package, type_checking=True)
        if item.module.partition(".")[0] not in known
    }
    assert not found, "\n".join(sorted(found))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import fuel_core.model", "model"),
        ("import fuel_core.model as m", "model"),
        ("from fuel_core import model", "model"),
        ("from fuel_core import load", "loading"),
        ("from fuel_core.plans.mask import MaskPlan", "plans"),
        ("from .mask import MaskPlan", "plans"),
        ("from . import mask", "plans"),
        ("from ..cache import Cache", "cache"),
        ("from .. import cache", "cache"),
        ("def f():\n    if x:\n        import fuel_core.model", "model"),
        ("import_module('fuel_core.model')", "model"),
        ("importlib.import_module('fuel_core.model')", "model"),
        ("if TYPE_CHECKING:\n    pass\nelse:\n    import fuel_core.model", "model"),
        ("if TYPE_CHECKING:\n    import fuel_core.model", None),
        ("if typing.TYPE_CHECKING:\n    from fuel_core.model import LanguageModel", None),
        ("from fuel_core import __version__", None),
        ("import fuel_core", None),
        ("import torch", None),
    ],
)
def test_the_reader_sees_every_form_of_import(source: str, expected: str | None) -> None:
    seen = {imported_group(item) for item in read_imports(source, package="fuel_core.plans")}
    assert seen - {None} == ({expected} - {None})


@pytest.mark.parametrize(
    ("source", "public"),
    [
        ("from fuel_core import hookimpl", True),
        ("from fuel_core import plans", True),
        ("import fuel_core.plans", True),
        ("from fuel_core import __getattr__", False),
        ("from fuel_core import errors", True),
        ("from fuel_core import step", False),
        ("from fuel_core.errors import ConfigError", True),
        ("from fuel_core.plans.mask import MaskPlan", False),
        ("from fuel_core.plans import _private", False),
    ],
)
def test_the_public_face_is_told_from_the_inside(source: str, public: bool) -> None:
    (item,) = read_imports(source, package="fuel_x")
    assert (why_not_public(item) is None) == public
