"""``fuel doctor``: every check survives every other's failure."""

import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers
from typer.testing import CliRunner

from fuel_core.cli.app import app
from fuel_core.errors import PluginError
from fuel_core.inspection import machine
from fuel_core.inspection.examination import examination
from fuel_core.inspection.finding import Finding, Problem, survived
from fuel_core.registry import Registry
from fuel_core.testing import Case

CHECKS = ["versions", "hub cache", "plugins", "torch", "devices", "threads", "kernels", "families"]
NEED_TORCH = ["devices", "threads", "kernels", "families"]
PLUGIN = """
from fuel_core import FamilyCard, hookimpl
print("hello from a plugin")
@hookimpl
def fuel_families():
    return [FamilyCard(name="qwen2", model_types=("qwen2",), definition="{definition}",
                       summary="", source="", bundled="{package}:checkpoint")]
"""

fresh_packages = (f"doctor_plugin_{number}" for number in itertools.count())
PluginSite = Callable[..., Registry]


@pytest.fixture(autouse=True)
def _empty_hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))


def save_tokenizer(folder: Path) -> None:
    vocab = {character: place for place, character in enumerate(pre_tokenizers.ByteLevel.alphabet())}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))


@pytest.fixture
def plugin_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PluginSite:
    """Makes a registry of one plugin that bundles a tiny Qwen2."""

    def make(definition: str = "fuel_qwen.qwen2:QWEN2") -> Registry:
        package = next(fresh_packages)
        folder = tmp_path / package / "checkpoint"
        family = Registry.discover(strict=True).family("qwen2")
        raw = {**family.tiny["mixed-window"], "vocab_size": 256}
        case = Case.build(family, "mixed-window", raw=raw, dtype=torch.float32)
        case.save(folder)
        save_tokenizer(folder)
        (tmp_path / package / "__init__.py").write_text(PLUGIN.format(definition=definition, package=package))
        monkeypatch.syspath_prepend(tmp_path)
        return Registry.discover([EntryPoint(package, package, "fuel")], strict=True)

    return make


def examined(discover: Callable[[], Registry]) -> dict[str, Finding]:
    return {finding.name: finding for finding in examination(discover)}


def statuses(findings: dict[str, Finding]) -> dict[str, str]:
    return {name: finding.status for name, finding in findings.items() if finding.status != "ok"}


def test_a_working_installation_is_found_to_work(plugin_site: PluginSite) -> None:
    registry = plugin_site()
    findings = examined(lambda: registry)
    assert list(findings) == [*CHECKS, "bundled qwen2"]
    assert statuses(findings) == {}
    assert findings["bundled qwen2"].facts["tokens"] == 2
    assert findings["torch"].facts["version"] == torch.__version__
    assert findings["devices"].facts["cpu"]["name"]
    assert findings["kernels"].facts["fuel::attend"]["cpu"] == "own"
    json.dumps([finding.as_dict() for finding in findings.values()], allow_nan=False)


@pytest.mark.parametrize("error", [RuntimeError("no"), SystemExit(3), BaseException("a panic")])
@pytest.mark.parametrize("broken", [*CHECKS])
def test_a_check_that_breaks_breaks_no_other(
    broken: str, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = Registry(plugins=())

    def fail(*_: Registry) -> Any:
        raise error

    functions = {"hub cache": "hub_cache", "torch": "torch_import"}
    if broken == "families":
        monkeypatch.setattr("fuel_core.inspection.examination.importable_families", fail)
    elif broken != "plugins":
        monkeypatch.setattr(machine, functions.get(broken, broken), fail)
    findings = examined(fail if broken == "plugins" else lambda: registry)
    assert list(findings) == CHECKS
    expected = {broken: "failed"}
    if broken == "torch":
        expected |= dict.fromkeys(NEED_TORCH, "skipped")
    assert statuses(findings) == expected
    assert type(error).__name__ in findings[broken].problems[0].cause
    assert findings[broken].problems[0].remedy.startswith("pip install")


def test_an_interruption_is_not_survived() -> None:
    def interrupted() -> Finding:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        survived("check", interrupted, remedy="")


def test_without_torch_the_rest_is_still_told(
    plugin_site: PluginSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = plugin_site()
    monkeypatch.setitem(sys.modules, "torch", None)
    findings = examined(lambda: registry)
    assert statuses(findings) == {
        "torch": "failed",
        **dict.fromkeys([*NEED_TORCH, "bundled qwen2"], "skipped"),
    }
    assert findings["versions"].facts["torch"]
    assert findings["plugins"].facts


def test_every_quarantined_plugin_is_a_problem_with_its_remedy() -> None:
    broken = [EntryPoint(name, f"absent_module_{name}", "fuel") for name in ("one", "two")]
    findings = examined(lambda: Registry.discover(broken, strict=False))
    assert statuses(findings) == {"plugins": "failed"}
    problems = findings["plugins"].problems
    assert ["absent_module_one" in problems[0].cause, "absent_module_two" in problems[1].cause] == [True] * 2
    assert all("pip install" in problem.remedy for problem in problems)
    assert any("fuel-qwen" in note for note in findings["plugins"].notes)


def test_a_name_that_two_plugins_claim_is_a_problem(plugin_site: PluginSite) -> None:
    plugins = (*plugin_site().plugins, *plugin_site().plugins)
    findings = examined(lambda: Registry(plugins=plugins))
    assert findings["plugins"].status == "failed"
    assert any("'qwen2' is claimed by" in problem.cause for problem in findings["plugins"].problems)
    assert "FamilyClash" in findings["bundled qwen2"].problems[0].cause


def test_a_plugin_that_is_left_out_is_no_problem() -> None:
    findings = examined(lambda: Registry(plugins=(), excluded=("fuel-x 1.0",)))
    assert statuses(findings) == {}
    assert "fuel-x 1.0 is left out by FUEL_PLUGINS" in findings["plugins"].notes


def drop_the_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def cut_the_weights(folder: Path) -> None:
    os.truncate(folder / "model.safetensors", 1000)


@pytest.mark.parametrize(
    ("damage", "cause"),
    [(cut_the_weights, "CheckpointError: "), (drop_the_tokenizer, "TokenizerError: ")],
)
def test_a_bundled_checkpoint_that_does_not_run_is_a_problem(
    damage: Callable[[Path], None], cause: str, plugin_site: PluginSite
) -> None:
    registry = plugin_site()
    damage(registry.bundled_folder(registry.cards[0]))
    findings = examined(lambda: registry)
    assert statuses(findings) == {"bundled qwen2": "failed"}
    assert findings["bundled qwen2"].problems[0].cause.startswith(cause)
    assert "pip install --force-reinstall" in findings["bundled qwen2"].problems[0].remedy


@pytest.mark.parametrize("definition", ["fuel_qwen.absent:QWEN2", "fuel_qwen.qwen2:QWEN1", "sys:path"])
@pytest.mark.parametrize("bundled", [True, False])
def test_a_definition_that_is_gone_is_a_problem(
    definition: str, bundled: bool, plugin_site: PluginSite
) -> None:
    """Of a family that bundles nothing nobody imported the code, and nothing was said to be broken."""
    registry = plugin_site(definition=definition)
    if not bundled:
        cards = tuple(replace(card, bundled=None) for card in registry.cards)
        registry = Registry(plugins=(replace(registry.plugins[0], cards=cards),))
    findings = examined(lambda: registry)
    broken = ["families", *(["bundled qwen2"] if bundled else [])]
    assert statuses(findings) == dict.fromkeys(broken, "failed")
    for name in broken:
        assert definition in findings[name].problems[0].cause
        assert "pip install --force-reinstall" in findings[name].problems[0].remedy


def test_families_that_can_be_imported_are_counted(plugin_site: PluginSite) -> None:
    works, gone = plugin_site().plugins[0], plugin_site(definition="fuel_qwen.absent:QWEN2").plugins[0]
    finding = examined(lambda: Registry(plugins=(works, gone)))["families"]
    assert finding.facts == {"importable": 1}
    assert len(finding.problems) == 1


def test_what_loading_warns_of_is_noted(plugin_site: PluginSite) -> None:
    registry = plugin_site()
    path = registry.bundled_folder(registry.cards[0]) / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "rope_theta": None}))
    finding = examined(lambda: registry)["bundled qwen2"]
    assert finding.status == "ok"
    assert any("rope_theta is absent" in note for note in finding.notes)


@pytest.mark.parametrize(
    ("asked", "causes"),
    [
        (["torch>=2.6", "pydantic"], []),
        (["torch>=99"], [f"fuel-core requires torch>=99, found {torch.__version__}"]),
        (["absent-thing>=1"], ["fuel-core requires absent-thing>=1, found nothing"]),
        (['absent-thing; extra == "image"', 'absent-thing; python_version < "3"'], []),
        (None, []),
    ],
)
def test_versions_are_held_against_the_requirements(
    asked: list[str] | None, causes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "requires", lambda name: asked)
    found = machine.versions()
    assert [problem.cause for problem in found.problems] == causes
    assert found.facts["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found.facts["plugins"]["fuel-qwen"]


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2.0),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu.max": "nonsense"}, None),
        ({}, None),
    ],
)
def test_the_quota_of_a_container(files: dict[str, str], cores: float | None, tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    assert machine.cpu_quota(tmp_path) == cores
    affinity = machine.available_cores(tmp_path / "absent")
    assert machine.available_cores(tmp_path) == (affinity if cores is None else min(affinity, cores))


def test_more_threads_than_cores_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setattr(machine, "available_cores", lambda: 2.5)
    (note,) = machine.threads().notes
    assert "8 threads on 2.5 cores" in note
    assert "OMP_NUM_THREADS=2" in note
    monkeypatch.setattr(machine, "available_cores", lambda: 8.0)
    assert machine.threads().notes == ()


def test_the_size_of_the_hub_cache_counts_each_file_once(tmp_path: Path) -> None:
    assert machine.hub_cache().facts["exists"] is False
    blobs, snapshot = tmp_path / "hub/models--a--b/blobs", tmp_path / "hub/models--a--b/snapshots/1"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number in range(5):
        (blobs / str(number)).write_bytes(bytes(10_000))
    (snapshot / "config.json").symlink_to(blobs / "0")
    links = (snapshot / "config.json").lstat().st_size
    facts = machine.hub_cache().facts
    assert (facts["exists"], facts["bytes"], facts["complete"]) == (True, 50_000 + links, True)


def test_the_scan_of_a_large_hub_cache_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(folder: Path) -> Iterator[int]:
        yield from (10_000,) * 4
        pytest.fail("the scan goes on")

    monkeypatch.setattr(machine, "_MOST_CACHE_ENTRIES", 3)
    monkeypatch.setattr(machine, "_file_sizes", endless)
    bounded = machine.hub_cache()
    assert (bounded.facts["bytes"], bounded.facts["complete"]) == (30_000, False)
    assert bounded.notes == ("only the first 3 files are counted",)


def test_an_operation_has_its_own_kernel_the_reference_or_none() -> None:
    library = torch.library.Library("doctor_test", "DEF")
    library.define("nothing(Tensor x) -> Tensor")
    assert machine._kernel("fuel::attend", "CPU") == "own"
    assert machine._kernel("fuel::attend", "CUDA") == "own"
    assert machine._kernel("fuel::attend", "XPU") == "reference"
    assert machine._kernel("doctor_test::nothing", "CPU") is None


def run_doctor(*args: str, registry: Registry, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("fuel_core.cli.doctor.installed_registry", lambda: registry)
    return CliRunner().invoke(app, ["doctor", *args])


def test_the_command_exits_with_0_when_nothing_is_broken(
    plugin_site: PluginSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run_doctor("--json", registry=plugin_site(), monkeypatch=monkeypatch)
    document = json.loads(result.stdout)
    assert (result.exit_code, document["ok"]) == (0, True)
    assert [check["name"] for check in document["checks"]] == [*CHECKS, "bundled qwen2"]
    assert {check["status"] for check in document["checks"]} == {"ok"}
    text = run_doctor(registry=plugin_site(), monkeypatch=monkeypatch)
    assert text.exit_code == 0
    assert text.stdout.endswith("nothing is broken\n")
    assert "bundled qwen2: ok" in text.stdout


def test_the_command_exits_with_1_and_says_what_is_broken(
    plugin_site: PluginSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = plugin_site()
    cut_the_weights(registry.bundled_folder(registry.cards[0]))
    result = run_doctor("--json", registry=registry, monkeypatch=monkeypatch)
    document = json.loads(result.stdout)
    assert (result.exit_code, document["ok"]) == (1, False)
    assert document["checks"][-1]["status"] == "failed"
    assert set(document["checks"][-1]["problems"][0]) == {"cause", "remedy"}
    text = run_doctor(registry=registry, monkeypatch=monkeypatch)
    assert text.exit_code == 1
    assert "cause:  CheckpointError" in text.stdout
    assert "remedy: pip install" in text.stdout
    assert text.stdout.endswith("broken: bundled qwen2\n")


def test_what_a_model_wrote_stays_on_its_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    finding = Finding(name="bundled x", facts={"text": " of\nthe", "load_bytes": 2048, "device": "cpu"})
    monkeypatch.setattr("fuel_core.cli.doctor.examination", lambda discover: iter([finding]))
    lines = CliRunner().invoke(app, ["doctor"]).stdout.splitlines()
    assert [line.split(maxsplit=1) for line in lines[1:4]] == [
        ["text", r"' of\nthe'"],
        ["load_bytes", "2,048 bytes (2.0 KiB)"],
        ["device", "cpu"],
    ]


def test_what_a_check_prints_does_not_mix_with_json(monkeypatch: pytest.MonkeyPatch) -> None:
    def noisy() -> Registry:
        print("hello from a plugin")
        raise PluginError("broken")

    monkeypatch.setattr("fuel_core.cli.doctor.installed_registry", noisy)
    result = CliRunner().invoke(app, ["doctor", "--json"])
    assert json.loads(result.stdout)["ok"] is False
    assert "hello from a plugin" in result.stderr


def test_the_status_follows_from_what_was_found() -> None:
    problem = Problem(cause="c", remedy="r")
    assert Finding(name="n").status == "ok"
    assert Finding(name="n", notes=("slow",)).status == "ok"
    assert Finding(name="n", problems=(problem,)).status == "failed"
    assert Finding(name="n", skipped="why").status == "skipped"
    assert Finding(name="n", problems=(problem,)).as_dict()["problems"] == [{"cause": "c", "remedy": "r"}]
