"""Discovery over real distributions: metadata folders and modules on the path of a fresh process."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import fuel_core

ROOT = str(Path(fuel_core.__file__).parents[1])
CARD = "FamilyCard(name='{0}', model_types=('{0}',), definition='{0}_model:F', summary='', source='')"
GOOD = "from fuel_core import FamilyCard, hookimpl\n@hookimpl\ndef fuel_families(): return [" + CARD + "]\n"
LEAVES_A_TRACE = "import pathlib; pathlib.Path(__file__).with_suffix('.imported').touch()\n"


@dataclass(frozen=True, kw_only=True)
class Broken:
    """A plugin that cannot be used, and what its failure must say."""

    source: str
    stage: str
    cause: str
    requires: str = "fuel-core>=0.1"


BROKEN = {
    "import-error": Broken(source="import absent_dependency", stage="import", cause="absent_dependency"),
    "syntax-error": Broken(source="def (:", stage="import", cause="SyntaxError"),
    "exits": Broken(source="raise SystemExit(3)", stage="import", cause="SystemExit: 3"),
    "hook-raises": Broken(
        source="from fuel_core import hookimpl\n@hookimpl\ndef fuel_families(): raise ValueError('no cards')",
        stage="hook",
        cause="ValueError: no cards",
    ),
    "hook-exits": Broken(
        source="from fuel_core import hookimpl\n@hookimpl\ndef fuel_families(): raise SystemExit(3)",
        stage="hook",
        cause="SystemExit: 3",
    ),
    "wrong-argument": Broken(
        source="from fuel_core import hookimpl\n@hookimpl\ndef fuel_families(engine): return []",
        stage="registration",
        cause="engine",
    ),
    "misspelt-hook": Broken(
        source="from fuel_core import hookimpl\n@hookimpl\ndef fuel_familys(): return []",
        stage="registration",
        cause="fuel_familys",
    ),
    "no-card": Broken(
        source="from fuel_core import hookimpl\n@hookimpl\ndef fuel_families(): return [{'name': 'x'}]",
        stage="cards",
        cause="dict",
    ),
    "bad-card": Broken(source=GOOD.format("Bad Name"), stage="hook", cause="'Bad Name'"),
    "newer-core": Broken(
        source=LEAVES_A_TRACE + GOOD.format("newer"),
        stage="requirement",
        cause="fuel-core>=99",
        requires="fuel-core>=99",
    ),
}
# Sorted before, between and after the broken ones; one prints, which must not reach a JSON document.
WORKING = {
    "aaa": "print('hello from a plugin')\n" + LEAVES_A_TRACE + GOOD.format("aaa"),
    "mmm": GOOD.format("mmm"),
    "zzz": GOOD.format("zzz"),
}


def install(
    site: Path,
    name: str,
    version: str = "1.0",
    *,
    source: str | None = None,
    module: str | None = None,
    entry_points: tuple[str, ...] = ("plugin",),
    requires: str = "fuel-core>=0.1",
    metadata_folder: str | None = None,
) -> None:
    """Put the distribution ``name`` into ``site`` as pip would, its plugin being ``module``."""
    module = module or name.replace("-", "_")
    info = site / (metadata_folder or f"{name.replace('-', '_')}-{version}.dist-info")
    info.mkdir(parents=True)
    required = f"Requires-Dist: {requires}\n" if requires else ""
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{required}")
    lines = [f"{entry_point} = {module}" for entry_point in entry_points]
    (info / "entry_points.txt").write_text("\n".join(["[fuel]", *lines]))
    if source is not None:
        (site / f"{module}.py").write_text(source)


def python(*command: str, sites: list[Path], **env: str) -> subprocess.CompletedProcess[str]:
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("FUEL_")}
    path = os.pathsep.join([*map(str, sites), ROOT])
    return subprocess.run(
        [sys.executable, *command],
        env={**inherited, "PYTHONPATH": path, **env},
        capture_output=True,
        text=True,
        timeout=60,
    )


def fuel(*args: str, sites: list[Path], **env: str) -> subprocess.CompletedProcess[str]:
    result = python("-c", "from fuel_core.cli.app import main; main()", *args, sites=sites, **env)
    assert "Traceback" not in result.stderr
    return result


def listing(command: str, sites: list[Path], **env: str) -> Any:
    result = fuel(command, "--json", sites=sites, **env)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def found(sites: list[Path], **env: str) -> dict[str, list[str]]:
    """distribution and version -> families, of the distributions that these tests install."""
    document = listing("plugins", sites, **env)
    assert [failure for failure in document["failures"] if failure["distribution"].startswith("fuel-t")] == []
    return {
        f"{plugin['distribution']} {plugin['version']}": [family["name"] for family in plugin["families"]]
        for plugin in document["plugins"]
        if plugin["distribution"].startswith("fuel-t")
    }


def asked(expression: str, sites: list[Path], **env: str) -> str:
    """What an expression over the registry ``r`` gives: its text, or its error's type and text."""
    code = (
        "from fuel_core.registry import Registry\n"
        "from fuel_core.errors import FuelError\n"
        f"try:\n r = Registry.discover(); print({expression})\n"
        "except FuelError as error: print(type(error).__name__, error)"
    )
    result = python("-c", code, sites=sites, **env)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three plugins that work among all that do not."""
    site = tmp_path_factory.mktemp("site")
    for name, source in WORKING.items():
        install(site, f"fuel-t-{name}", source=source)
    for name, broken in BROKEN.items():
        install(site, f"fuel-t-{name}", source=broken.source, requires=broken.requires)
    return site


@pytest.fixture(scope="module")
def document(site: Path) -> Any:
    return listing("plugins", [site])


def test_the_plugins_that_work_are_all_there(document: Any) -> None:
    ours = {plugin["distribution"]: plugin for plugin in document["plugins"]}
    for name in WORKING:
        plugin = ours[f"fuel-t-{name}"]
        assert (plugin["version"], plugin["requirement"]) == ("1.0", ">=0.1")
        assert [family["name"] for family in plugin["families"]] == [name]
    assert not [name for name in BROKEN if f"fuel-t-{name}" in ours]


@pytest.mark.parametrize("name", BROKEN)
def test_a_plugin_that_cannot_be_used_is_reported_once_with_cause_and_remedy(
    document: Any, name: str
) -> None:
    (failure,) = [failure for failure in document["failures"] if failure["distribution"] == f"fuel-t-{name}"]
    assert (failure["version"], failure["entry_point"]) == ("1.0", "plugin")
    assert failure["stage"] == BROKEN[name].stage
    assert BROKEN[name].cause in failure["cause"]
    assert "\n" not in failure["cause"]
    assert failure["traceback"].startswith("Traceback")
    assert f"fuel-t-{name}" in failure["remedy"]


def test_a_plugin_for_a_newer_core_is_refused_before_its_import(site: Path, document: Any) -> None:
    """Importing it first would run code against an interface that it was not written for."""
    assert document["failures"]
    assert (site / "fuel_t_aaa.imported").exists()
    assert not (site / "fuel_t_newer_core.imported").exists()


def test_the_text_for_people_names_them_all(site: Path) -> None:
    plugins = fuel("plugins", sites=[site])
    assert plugins.returncode == 0
    for name, broken in BROKEN.items():
        assert f"fuel-t-{name} 1.0 cannot be used" in plugins.stdout
        assert broken.cause in plugins.stdout
    assert "Traceback" not in plugins.stdout
    assert "Traceback" in fuel("plugins", "--debug", sites=[site]).stdout
    families = fuel("families", sites=[site])
    assert {"aaa", "mmm", "zzz"} <= {line.split()[0] for line in families.stdout.splitlines()}
    assert "fuel-t-exits 1.0" in families.stderr


@pytest.mark.parametrize("strict", ["0", "1"])
def test_both_listings_work_when_every_plugin_is_broken(site: Path, strict: str) -> None:
    """Strict mode too: a listing is where one looks for the plugin that makes everything else fail."""
    env = {"FUEL_PLUGINS": ",".join(f"fuel-t-{name}" for name in BROKEN), "FUEL_STRICT_PLUGINS": strict}
    plugins = listing("plugins", [site], **env)
    assert plugins["plugins"] == []
    assert len(plugins["failures"]) == len(BROKEN)
    families = listing("families", [site], **env)
    assert families["families"] == []
    assert len(families["failures"]) == len(BROKEN)


def test_strict_raises_and_asking_for_a_broken_plugins_family_says_why(site: Path) -> None:
    env = {"FUEL_PLUGINS": "fuel-t-exits,fuel-t-aaa"}
    assert asked("r.card('aaa').name", [site], **env).endswith("aaa")
    for told in (
        asked("r.card('exits')", [site], **env).splitlines()[-1],
        asked("r.card('aaa')", [site], FUEL_STRICT_PLUGINS="1", **env).splitlines()[-1],
    ):
        assert "fuel-t-exits 1.0" in told
        assert "SystemExit: 3" in told
    assert asked("r.card('exits')", [site], **env).splitlines()[-1].startswith("UnknownFamily")


def test_the_allow_list_reports_what_is_not_installed(site: Path) -> None:
    document = listing("plugins", [site], FUEL_PLUGINS="fuel-t-mmm,fuel-t-nowhere")
    assert [plugin["distribution"] for plugin in document["plugins"]] == ["fuel-t-mmm"]
    assert "fuel-t-zzz 1.0" in document["excluded"]
    (failure,) = document["failures"]
    assert failure["stage"] == "allow list"
    assert "fuel-t-nowhere" in failure["cause"]


def test_two_distributions_that_claim_one_name(tmp_path: Path) -> None:
    install(tmp_path, "fuel-t-one", "1.0", source=GOOD.format("shared"))
    other = GOOD.replace("]\n", f", {CARD}]\n".replace("{0}", "own")).format("shared")
    install(tmp_path, "fuel-t-two", "2.0", source=other)
    install(tmp_path, "fuel-t-three", "3.0", source=GOOD.format("third"))
    assert asked("r.card('own').name, r.card('third').name", [tmp_path]) == "own third"
    for question in ("r.card('shared')", "r.card_for_model_type('shared')", "r.resolve('shared')"):
        told = asked(question, [tmp_path])
        assert told.startswith("FamilyClash")
        assert "fuel-t-one 1.0" in told
        assert "fuel-t-two 2.0" in told
    plugins = fuel("plugins", sites=[tmp_path])
    assert plugins.returncode == 0
    assert "'shared' is claimed by fuel-t-one 1.0 and fuel-t-two 2.0" in plugins.stdout
    assert "'shared' is claimed by" in fuel("families", sites=[tmp_path]).stderr


def test_stale_metadata_beside_a_new_version_is_neither_a_clash_nor_a_double(tmp_path: Path) -> None:
    """An interrupted upgrade leaves both; the old one names a module that is gone, or gone stale.

    Several stale ones, and 0.10 above 0.9: neither the order of the folder nor of the text decides.
    """
    for version in ("0.1", "0.2", "0.3", "0.5", "0.8", "0.9"):
        install(tmp_path, "fuel-t-up", version, module="fuel_t_gone")
    install(tmp_path, "fuel-t-up", "0.10", source=GOOD.format("up"))
    assert found([tmp_path]) == {"fuel-t-up 0.10": ["up"]}
    assert asked("r.clashes", [tmp_path]) == "()"
    assert asked("r.card('up').name", [tmp_path]) == "up"


def test_the_first_folder_of_the_path_counts_even_if_it_is_older(tmp_path: Path) -> None:
    """Python imports the module from there, so the other folder's metadata describes other code."""
    first, second = tmp_path / "first", tmp_path / "second"
    install(first, "fuel-t-up", "0.1", source=GOOD.format("old"))
    install(second, "fuel-t-up", "0.2", source=GOOD.format("new"))
    assert found([first, second]) == {"fuel-t-up 0.1": ["old"]}
    assert found([second, first]) == {"fuel-t-up 0.2": ["new"]}


def test_what_pip_leaves_when_it_is_killed_does_not_double(tmp_path: Path) -> None:
    """pip renames the metadata folder of what it uninstalls to ~name; its text still says the name."""
    install(tmp_path, "fuel-t-up", "0.1", module="fuel_t_gone", metadata_folder="~uel_t_up-0.1.dist-info")
    install(tmp_path, "fuel-t-up", "0.2", source=GOOD.format("up"))
    assert found([tmp_path]) == {"fuel-t-up 0.2": ["up"]}


def test_one_module_under_several_entry_points_and_distributions_is_no_clash(tmp_path: Path) -> None:
    """A distribution that was renamed is often installed under both names."""
    install(tmp_path, "fuel-t-new", source=GOOD.format("same"), module="fuel_t_same", entry_points=("a", "b"))
    install(tmp_path, "fuel-t-old", module="fuel_t_same")
    assert found([tmp_path]) == {"fuel-t-new 1.0": ["same"]}
    assert asked("r.card('same').name", [tmp_path]) == "same"


def test_a_distribution_that_asks_nothing_of_the_core_is_used_and_noted(tmp_path: Path) -> None:
    install(tmp_path, "fuel-t-lax", source=GOOD.format("lax"), requires="")
    assert found([tmp_path]) == {"fuel-t-lax 1.0": ["lax"]}
    assert "fuel-t-lax 1.0 does not say" in fuel("plugins", sites=[tmp_path]).stdout


def test_a_plugin_that_imports_torch_to_register_is_named(tmp_path: Path) -> None:
    """It makes ``fuel --help`` of others slow; the time of each import says by how much."""
    (tmp_path / "torch.py").write_text("import time; time.sleep(0.2)")
    install(tmp_path, "fuel-t-heavy", source="import torch\n" + GOOD.format("heavy"))
    install(tmp_path, "fuel-t-light", source=GOOD.format("light"))
    plugins = {plugin["distribution"]: plugin for plugin in listing("plugins", [tmp_path])["plugins"]}
    assert plugins["fuel-t-heavy"]["imports_torch"] is True
    assert plugins["fuel-t-light"]["imports_torch"] is False
    assert plugins["fuel-t-heavy"]["import_ms"] >= 200 > plugins["fuel-t-light"]["import_ms"]
    assert "fuel-t-heavy 1.0 imports torch" in fuel("plugins", sites=[tmp_path]).stdout


def test_metadata_that_cannot_be_read_hides_nobody(tmp_path: Path) -> None:
    install(tmp_path, "fuel-t-good", source=GOOD.format("good"))
    install(tmp_path, "fuel-t-garbled")
    (tmp_path / "fuel_t_garbled-1.0.dist-info" / "entry_points.txt").write_text("[fuel]\nno equals sign")
    install(tmp_path, "fuel-t-bytes")
    (tmp_path / "fuel_t_bytes-1.0.dist-info" / "entry_points.txt").write_bytes(b"[fuel]\n\xff\xfe = x")
    install(tmp_path, "fuel-t-versionless", "never", source=GOOD.format("never"))
    result = fuel("plugins", "--json", sites=[tmp_path])
    families = [
        family["name"] for plugin in json.loads(result.stdout)["plugins"] for family in plugin["families"]
    ]
    assert {"good", "never"} <= {*families}
    assert "fuel-t-garbled" in result.stderr
    assert "fuel-t-bytes" in result.stderr


def test_a_bundled_checkpoint_is_told_from_one_that_got_lost(tmp_path: Path) -> None:
    for name in ("kept", "lost"):
        card = CARD.format(name)[:-1] + f", bundled='fuel_t_{name}:checkpoints/{name}')"
        install(tmp_path, f"fuel-t-{name}")
        package = tmp_path / f"fuel_t_{name}"
        package.mkdir()
        (package / "__init__.py").write_text(GOOD.replace(CARD, card))
    (tmp_path / "fuel_t_kept" / "checkpoints" / "kept").mkdir(parents=True)
    families = {family["name"]: family for family in listing("families", [tmp_path])["families"]}
    assert (families["kept"]["bundled"], families["kept"]["bundled_problem"]) == (True, None)
    assert families["lost"]["bundled"] is False
    assert "reinstall fuel-t-lost" in families["lost"]["bundled_problem"]
    assert "lost: missing" in fuel("plugins", sites=[tmp_path]).stdout
