"""``fuel plan``, ``fuel diff`` and ``fuel doctor`` as a user meets them."""

import json
import os
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

import fuel_core
from fuel_core.cli.app import app
from fuel_core.cli.byte_count import byte_count
from fuel_core.cli.model_options import option_choices
from fuel_core.cli.plan import short_value

ROOT = str(Path(fuel_core.__file__).parents[1])
QWEN25_7B = {
    "model_type": "qwen2",
    "vocab_size": 152064,
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32768,
    "rope_theta": 1000000.0,
    "torch_dtype": "bfloat16",
}


def fuel(*args: str | Path) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args])


def process(*args: str | Path, site: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, with ``site`` first on its path."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("FUEL_")}
    return subprocess.run(
        [sys.executable, "-c", "from fuel_core.cli.app import main; main()", *map(str, args)],
        env={**inherited, "PYTHONPATH": os.pathsep.join([str(site), ROOT]), "OMP_NUM_THREADS": "1", **env},
        capture_output=True,
        text=True,
        timeout=120,
    )


def install(site: Path, name: str, source: str) -> None:
    """Put a plugin into ``site`` as pip would."""
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[fuel]\nplugin = {name}\n")
    (site / f"{name}.py").write_text(source)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "qwen2.5-7b.json"
    path.write_text(json.dumps(QWEN25_7B))
    return path


def changed(config: Path, **keys: Any) -> Path:
    path = config.with_name("changed.json")
    path.write_text(json.dumps({**QWEN25_7B, **keys}))
    return path


def test_a_plan_is_read_from_top_to_bottom(config: Path) -> None:
    lines = fuel("plan", config, "--context", "1000", "--rows", "3").stdout.splitlines()
    assert lines[0].startswith("qwen2 (fuel-qwen ")
    assert "parameters  7,615,616,512" in lines
    assert (
        "cache       57,344 bytes (56.0 KiB) a token; 3 x 1,000 tokens: 172,032,000 bytes (164.1 MiB)"
        in lines
    )
    (layers,) = [line for line in lines if line.startswith("0-27")]
    assert layers.split()[1:3] == ["causal", "#0"]
    (recipe,) = [line for line in lines if line.startswith("#0")]
    assert recipe.split() == ["#0", "1,000,000", "128", "half", "none", "1"]
    assert [line.split()[0] for line in lines if "read by the family" in line] == list(QWEN25_7B)[1:]


def test_layers_of_a_kind_are_one_line(config: Path) -> None:
    kinds = ["sliding_attention", "sliding_attention", "full_attention", "full_attention"] * 7
    path = changed(config, layer_types=kinds, use_sliding_window=True, sliding_window=4096)
    lines = fuel("plan", path).stdout.splitlines()
    spans = [line.partition("  ")[0] for line in lines if " #0 " in line and "attention" in line]
    assert spans == [
        "0-1, 4-5, 8-9, 12-13, 16-17, 20-21, 24-25",
        "2-3, 6-7, 10-11, 14-15, 18-19, 22-23, 26-27",
    ]
    assert any("window 4,096" in line for line in lines)


def test_a_scaling_is_shown_with_its_numbers_and_notes_at_the_end(config: Path) -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    text = fuel("plan", changed(config, rope_scaling=scaling, rope_theta=None)).stdout
    assert "yarn: factor 4, original_length 32,768, beta_fast 32" in text
    assert "1.138629436" in text
    assert text.splitlines()[-1].startswith("note: rope_theta is absent")


def test_json_of_a_plan(config: Path) -> None:
    report = json.loads(fuel("plan", config, "--json", "--dtype", "float32", "--rows", "2").stdout)
    assert report["parameters"]["bytes"] == {"float32": 4 * 7_615_616_512}
    assert report["cache"]["bytes_per_token"] == 2 * 57_344
    assert report["cache"]["rows"] == 2
    assert len(report["layers"]) == 28


def test_options_reach_the_family(config: Path) -> None:
    path = changed(config, use_sliding_window=True, sliding_window=9, max_window_layers=27)
    for choice, windows in (("first", 27), ("last", 1)):
        report = json.loads(fuel("plan", path, "--json", "--option", f"window_layers={choice}").stdout)
        assert [layer["window"] for layer in report["layers"]].count(9) == windows


@pytest.mark.parametrize(
    ("args", "status", "message"),
    [
        (["--option", "window_layer=first"], 1, "qwen2 has no option window_layer"),
        (["--option", "window_layers=frist"], 1, "window_layers is 'frist'"),
        (["--option", "window_layers"], 2, "is no KEY=VALUE"),
        (["--context", "32769"], 1, "32769 tokens exceeds the 32768 positions"),
        (["--dtype", "float7"], 1, "dtype float7 is unknown"),
        (["--rows", "0"], 2, "--rows"),
        (["--context", "0"], 2, "--context"),
        (["--image", "plan.txt"], 1, "should end in one of"),
    ],
)
def test_what_cannot_be_planned_is_refused(args: list[str], status: int, message: str, config: Path) -> None:
    if "--image" in args:
        pytest.importorskip("matplotlib")
    result = fuel("plan", config, *args)
    assert (result.exit_code, result.stdout) == (status, "")
    assert message in result.stderr


def test_an_unknown_key_is_refused_unless_allowed(config: Path) -> None:
    path = changed(config, odd_key=7)
    refused = fuel("plan", path)
    assert refused.exit_code == 1
    assert "odd_key" in refused.stderr
    assert "--allow-unknown-keys" in refused.stderr
    allowed = fuel("plan", path, "--allow-unknown-keys").stdout
    assert ["odd_key", "7", "refused"] in [line.split()[:3] for line in allowed.splitlines()]
    assert allowed.splitlines()[-1].startswith("note: odd_key is passed over")


def test_a_bundled_name_is_planned_without_its_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "bundling_plugin"
    (package / "checkpoint").mkdir(parents=True)
    (package / "checkpoint" / "config.json").write_text(json.dumps(QWEN25_7B))
    (package / "__init__.py").write_text(
        "from fuel_core import FamilyCard, hookimpl\n"
        "print('hello from a plugin')\n"
        "@hookimpl\n"
        "def fuel_families():\n"
        "    return [FamilyCard(name='qwen2', model_types=('qwen2',), definition='fuel_qwen.qwen2:QWEN2',\n"
        "                       summary='', source='', bundled='bundling_plugin:checkpoint')]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    entry_point = EntryPoint("bundling", "bundling_plugin", "fuel")
    monkeypatch.setattr("fuel_core.discovery.installed_entry_points", lambda: [entry_point])
    result = fuel("plan", "qwen2", "--json")
    assert json.loads(result.stdout)["parameters"]["count"] == 7_615_616_512
    assert result.stderr == "hello from a plugin\n"


def test_an_image_comes_with_the_plan(config: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    image = tmp_path / "plan.png"
    result = fuel("plan", config, "--json", "--image", image)
    assert json.loads(result.stdout)["family"] == "qwen2"
    assert image.read_bytes().startswith(b"\x89PNG")
    assert str(image) in result.stderr


def test_a_missing_extra_is_named_before_anything_is_printed(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = fuel("plan", config, "--image", tmp_path / "plan.png")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "pip install 'fuel-core[image]'" in result.stderr


def test_equal_plans_are_said_to_be_equal(config: Path) -> None:
    result = fuel("diff", config, config, "--exit-code")
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "The plans are equal.")
    assert json.loads(fuel("diff", config, config, "--json").stdout)["differences"] == []


def test_a_difference_is_status_1_only_when_asked(config: Path) -> None:
    other = changed(config, rope_theta=10000.0)
    assert fuel("diff", config, other).exit_code == 0
    assert fuel("diff", config, other, "--json").exit_code == 0
    assert fuel("diff", config, other, "--exit-code").exit_code == 1
    assert fuel("diff", config, other, "--exit-code", "--json").exit_code == 1


def test_a_difference_shows_both_sides(config: Path) -> None:
    other = changed(config, rope_theta=10000.0, sliding_window=None)
    text = fuel("diff", config, other).stdout
    lines = [line.split() for line in text.splitlines()]
    assert ["rope_theta", "1000000.0", "10000.0"] in lines
    assert ["sliding_window", "32768", "null"] in lines
    assert ["sliding_window", "(absent)", "used"] in lines
    document = json.loads(fuel("diff", config, other, "--json").stdout)
    assert (document["a"], document["b"], document["equal"]) == (str(config), str(other), False)
    assert {"section": "config", "key": "rope_theta", "a": 1e6, "b": 1e4} in document["differences"]
    assert {"section": "ledger", "key": "sliding_window", "b": "used"} in document["differences"]


def test_files_with_unknown_keys_can_be_compared_when_allowed(config: Path) -> None:
    other = changed(config, odd_key=7)
    assert fuel("diff", config, other).exit_code == 1
    assert "refused at 7" in fuel("diff", config, other, "--allow-unknown-keys").stdout


def test_option_choices() -> None:
    assert option_choices([]) == {}
    assert option_choices(["a=1", "b=x=y", "c=", "d=null"]) == {"a": "1", "b": "x=y", "c": "", "d": None}
    for wrong in (["=1"], ["a"], ["a=1", "a=2"]):
        with pytest.raises(typer.BadParameter):
            option_choices(wrong)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (1023, "1,023 bytes"),
        (1024, "1,024 bytes (1.0 KiB)"),
        (57_344, "57,344 bytes (56.0 KiB)"),
        (1024**2 - 1, "1,048,575 bytes (1024.0 KiB)"),
        (1024**3, "1,073,741,824 bytes (1.0 GiB)"),
        (5 * 1024**5, "5,629,499,534,213,120 bytes (5120.0 TiB)"),
    ],
)
def test_bytes_are_exact_and_readable(count: int, text: str) -> None:
    assert byte_count(count) == text


def test_a_long_value_is_cut() -> None:
    assert short_value("x" * 38) == f'"{"x" * 38}"'
    assert short_value("x" * 39) == f'"{"x" * 38}…'
    assert short_value({"a": [1, None]}) == '{"a": [1, null]}'


def test_in_a_process_of_its_own_stdout_is_json_alone(config: Path, tmp_path: Path) -> None:
    install(tmp_path, "noisy", "print('hello from a plugin')\nraise ImportError('broken')")
    result = process("plan", config, "--json", site=tmp_path)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["parameters"]["count"] == 7_615_616_512
    assert "hello from a plugin" in result.stderr


def test_doctor_works_where_torch_and_every_plugin_are_broken(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise OSError('libtorch.so: cannot open')")
    install(tmp_path, "broken", "raise SystemExit(3)")
    result = process("doctor", "--json", site=tmp_path, FUEL_PLUGINS="broken")
    assert result.returncode == 1, result.stderr
    checks = {check["name"]: check for check in json.loads(result.stdout)["checks"]}
    statuses = {name: check["status"] for name, check in checks.items()}
    assert statuses == {
        "versions": "ok",
        "hub cache": "ok",
        "plugins": "failed",
        "torch": "failed",
        "devices": "skipped",
        "threads": "skipped",
        "kernels": "skipped",
        "families": "skipped",
    }
    assert "SystemExit: 3" in checks["plugins"]["problems"][0]["cause"]
    assert "libtorch.so" in checks["torch"]["problems"][0]["cause"]
    assert "Traceback" not in result.stderr


def test_the_change_of_rope_tables_is_said(config: Path) -> None:
    scaling = {
        "rope_type": "longrope",
        "short_factor": [1.0] * 64,
        "long_factor": [2.0] * 64,
        "original_max_position_embeddings": 4096,
    }
    text = fuel("plan", changed(config, rope_scaling=scaling)).stdout
    (line,) = [line for line in text.splitlines() if line.startswith("the first table serves")]
    assert "up to 4,096 tokens" in line
    assert "prefilled again once" in line
    assert "the first table serves" not in fuel("plan", config).stdout
