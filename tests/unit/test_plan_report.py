"""What ``fuel plan`` reports, against formulas and against the model that is loaded afterwards."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import fuel_core.inspection.plan_report as plan_report
from fuel_core.cache import CachePool
from fuel_core.errors import CapacityError, ConfigError, FuelWarning, RequestError, UnknownFamily
from fuel_core.inspection.plain_data import plain
from fuel_core.inspection.plan_report import PlanReport, locate_config, read_report, recipe
from fuel_core.loading import load
from fuel_core.plans import KVSlots, LongRopeScaling, RopeVariant
from fuel_core.registry import Registry
from fuel_core.testing import Case

QWEN25_7B = {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "max_position_embeddings": 32768,
    "max_window_layers": 28,
    "model_type": "qwen2",
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 131072,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "vocab_size": 152064,
}


@pytest.fixture(scope="module")
def registry() -> Registry:
    return Registry.discover(strict=True)


def folder_with(tmp_path: Path, raw: dict[str, Any]) -> str:
    (tmp_path / "config.json").write_text(json.dumps(raw))
    return str(tmp_path)


def tiny(registry: Registry, name: str, **keys: Any) -> dict[str, Any]:
    return {**registry.family("qwen2").tiny[name], **keys}


def test_the_numbers_of_qwen25_7b_are_those_of_the_formulas(registry: Registry, tmp_path: Path) -> None:
    report = read_report(registry, folder_with(tmp_path, QWEN25_7B), context=32768, rows=4).as_dict()
    width, inner, layers, vocabulary = 3584, 18944, 28, 152064
    queries, keys = 28 * 128, 4 * 128
    matrices = layers * (width * (queries + 2 * keys) + queries * width + 3 * width * inner)
    matrices += 2 * vocabulary * width
    vectors = layers * (queries + 2 * keys + 2 * width) + width
    assert matrices + vectors == 7_615_616_512
    assert report["parameters"] == {
        "count": matrices + vectors,
        "bytes": {"bfloat16": 2 * matrices, "float32": 4 * vectors},
    }
    assert report["cache"] == {
        "bytes_per_token": 2 * 4 * 128 * 28 * 2,
        "expanded_bytes_per_token": 2 * 4 * 128 * 28 * 2,
        "context": 32768,
        "rows": 4,
        "bytes": 57344 * 32768 * 4,
        "allocated_bytes": 57344 * 32768 * 5,
    }
    assert report["position_limit"] == 32768
    assert report["family"] == "qwen2"
    assert report["plugin"]["distribution"] == "fuel-qwen"
    assert report["numerics"]["weights"] == report["numerics"]["cache"] == "bfloat16"
    assert report["config"]["head_dim"] == 128
    assert report["notes"] == []


@pytest.mark.parametrize("name", ["dense", "tied", "mixed-window", "yarn"])
def test_the_report_is_of_the_model_that_a_load_gives(name: str, registry: Registry, tmp_path: Path) -> None:
    Case.build(registry.family("qwen2"), name, dtype=torch.float32).save(tmp_path)
    report = read_report(registry, str(tmp_path), dtype="bfloat16")
    with pytest.warns(FuelWarning) if report.notes else torch.no_grad():
        model = load(tmp_path, dtype="bfloat16", registry=registry)
    assert report.plan == model.plan
    held = {str(p.dtype).removeprefix("torch."): 0 for p in model.decoder.parameters()}
    for parameter in model.decoder.parameters():
        held[str(parameter.dtype).removeprefix("torch.")] += parameter.numel() * parameter.itemsize
    assert report.parameters.count == sum(parameter.numel() for parameter in model.decoder.parameters())
    assert report.parameters.bytes == held
    assert len(held) == 2


def test_a_tied_head_counts_once(registry: Registry, tmp_path: Path) -> None:
    counts = []
    for tied in (False, True):
        raw = {**QWEN25_7B, "tie_word_embeddings": tied}
        counts.append(read_report(registry, folder_with(tmp_path, raw)).parameters.count)
    assert counts[0] - counts[1] == 152064 * 3584


def test_no_weight_file_is_opened(registry: Registry, tmp_path: Path) -> None:
    folder = folder_with(tmp_path, QWEN25_7B)
    alone = read_report(registry, folder).as_dict()
    (tmp_path / "model.safetensors").write_bytes(b"no safetensors")
    (tmp_path / "model.safetensors.index.json").write_text("no json")
    assert read_report(registry, folder).as_dict() == alone


def test_the_allocated_bytes_are_those_of_a_pool(registry: Registry, tmp_path: Path) -> None:
    folder = folder_with(tmp_path, tiny(registry, "head-dim"))
    report = read_report(registry, folder, context=17, rows=3)
    pool = CachePool(report.plan.cache, rows=3, capacity=17, dtype=report.plan.numerics.cache)
    held = sum(tensor.numel() * tensor.itemsize for layer in pool.layers for tensor in layer.tensors)
    assert report.cache["allocated_bytes"] == held
    assert report.cache["bytes"] * 4 == held * 3


def test_layers_have_their_own_windows(registry: Registry, tmp_path: Path) -> None:
    report = read_report(registry, folder_with(tmp_path, tiny(registry, "mixed-window"))).as_dict()
    assert [layer["window"] for layer in report["layers"]] == [5, None, None, 5]
    assert [report["mask"]["windows"][mask] for mask in report["mask"]["per_layer"]] == [5, None, None, 5]
    first = report["layers"][0]
    assert first["layer"] == first["rope"] == 0
    assert first["cache_bytes_per_token"] == 2 * 2 * 8 * 4
    assert first["slots"] == {"kind": "KVSlots", "text": "k, v: 2 x 8", "heads": 2, "head_dim": 8}
    assert first["feed_forward"]["width"] == 80
    assert first["mixer"]["query_heads"] == 6


def test_a_scaled_recipe_is_given_with_its_numbers_and_magnitude(registry: Registry, tmp_path: Path) -> None:
    report = read_report(registry, folder_with(tmp_path, tiny(registry, "yarn"))).as_dict()
    (found,) = report["rope"]["variants"]
    assert (found["base"], found["width"], found["layout"]) == (37.0, 64, "half")
    assert found["scaling"]["kind"] == "yarn"
    assert found["scaling"]["factor"] == 8.0
    assert found["scaling"]["original_length"] == 32
    assert found["magnitudes"] == [pytest.approx(0.1 * math.log(8) + 1)]
    assert report["rope"]["per_layer"] == [0, 0, 0, 0]


def test_a_recipe_of_two_tables_has_both_magnitudes() -> None:
    scaling = LongRopeScaling(
        short_factor=(1.0, 2.0), long_factor=(3.0, 4.0), original_length=64, magnitude=1.5, long_mscale=2.5
    )
    found = recipe(RopeVariant(base=1e4, width=4, scaling=scaling))
    assert found["magnitudes"] == [1.5, 2.5]
    assert found["scaling"]["long_factor"] == [3.0, 4.0]


def test_every_key_has_its_fate(registry: Registry, tmp_path: Path) -> None:
    raw = tiny(registry, "dense", use_cache=True, odd_key=[1])
    folder = folder_with(tmp_path, raw)
    with pytest.raises(ConfigError, match="odd_key"):
        read_report(registry, folder)
    report = read_report(registry, folder, allow_unknown_keys=True).as_dict()
    assert [entry["key"] for entry in report["ledger"]] == list(raw)
    fates = {entry["key"]: (entry["fate"], entry["value"]) for entry in report["ledger"]}
    assert fates["hidden_size"] == ("used", 48)
    assert fates["use_cache"] == ("irrelevant", True)
    assert fates["odd_key"] == ("refused", [1])
    assert any("odd_key" in note for note in report["notes"])


def test_what_is_assumed_is_noted(registry: Registry, tmp_path: Path) -> None:
    raw = tiny(registry, "dense", rope_theta=None)
    folder = folder_with(tmp_path, raw)
    notes = "\n".join(read_report(registry, folder).notes)
    assert "no dtype: float32 is assumed" in notes
    assert "rope_theta is absent" in notes
    assert "dtype" not in "\n".join(read_report(registry, folder, dtype="float16").notes)
    assert read_report(registry, folder, dtype="float16").plan.numerics.weights is torch.float16


def test_options_change_the_plan(registry: Registry, tmp_path: Path) -> None:
    raw = tiny(registry, "dense", use_sliding_window=True, sliding_window=9, max_window_layers=1)
    folder = folder_with(tmp_path, raw)
    for choice, windows in (("first", [9, None, None, None]), ("last", [None, 9, 9, 9])):
        report = read_report(registry, folder, options={"window_layers": choice}).as_dict()
        assert [layer["window"] for layer in report["layers"]] == windows
        assert report["options"]["window_layers"] == choice


def test_options_may_be_text_and_are_read_by_their_types(registry: Registry, tmp_path: Path) -> None:
    folder = folder_with(tmp_path, tiny(registry, "dense", rope_theta=None))
    report = read_report(registry, folder, options={"absent_rope_theta": "12.5"})
    assert report.plan.rope.variants[0].base == 12.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": "first"}, "has no option window; it has dynamic_ntk, window_layers, absent_rope_theta"),
        ({"window_layers": "frist"}, "window_layers is 'frist'"),
        ({"absent_rope_theta": "much"}, "absent_rope_theta is 'much'"),
        ({"absent_rope_theta": None}, "absent_rope_theta is None"),
    ],
)
def test_an_option_that_does_not_exist_or_fit_is_refused(
    options: dict[str, Any], message: str, registry: Registry, tmp_path: Path
) -> None:
    """A misspelt choice used to pass, and then counted as whatever the family compares last."""
    folder = folder_with(tmp_path, tiny(registry, "dense"))
    with pytest.raises(RequestError, match=re.escape(message)):
        read_report(registry, folder, options=options)


def test_more_tokens_than_positions_are_refused(registry: Registry, tmp_path: Path) -> None:
    folder = folder_with(tmp_path, tiny(registry, "dense"))
    assert read_report(registry, folder).context == 256
    assert read_report(registry, folder, context=256).cache["context"] == 256
    with pytest.raises(CapacityError, match=r"257 tokens exceeds the 256 positions"):
        read_report(registry, folder, context=257)


def test_an_unknown_model_type_names_the_package_that_reads_it(tmp_path: Path) -> None:
    with pytest.raises(UnknownFamily, match="pip install fuel-deepseek"):
        read_report(Registry(plugins=()), folder_with(tmp_path, {**QWEN25_7B, "model_type": "deepseek_v2"}))


def test_what_json_has_no_form_for_becomes_text() -> None:
    """Python writes infinity as a word that no other parser reads."""
    found = plain({"a": [math.inf, 1.5], "b": (torch.bfloat16, None), 3: {True}, "d": KVSlots(2, 8)})
    assert found == {
        "a": ["inf", 1.5],
        "b": ["bfloat16", None],
        "3": "{True}",
        "d": {"heads": 2, "head_dim": 8},
    }


@pytest.mark.parametrize("name", ["dense", "tied", "all-window", "mixed-window", "head-dim", "yarn"])
def test_every_report_is_json_with_the_documented_keys(name: str, registry: Registry, tmp_path: Path) -> None:
    report = read_report(registry, folder_with(tmp_path, tiny(registry, name))).as_dict()
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    documented = re.findall(r"^ {8}``(\w+)``", PlanReport.as_dict.__doc__ or "", flags=re.MULTILINE)
    assert list(report) == documented


def test_a_config_file_may_have_any_name(registry: Registry, tmp_path: Path) -> None:
    path = tmp_path / "published.json"
    path.write_text(json.dumps(QWEN25_7B))
    assert locate_config(registry, str(path)) == path
    assert read_report(registry, str(path)).as_dict()["source"] == str(path)
    with pytest.raises(ConfigError, match=r"absent\.json does not exist"):
        read_report(registry, str(tmp_path / "absent.json"))


def test_a_file_hides_no_family(registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "qwen2").write_text("{}")
    (tmp_path / "bare").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert locate_config(registry, "bare") == Path("bare")
    assert locate_config(registry, "./qwen2") == Path("./qwen2")
    bundled = tmp_path / "bundled"
    monkeypatch.setattr(Registry, "bundled_folder", lambda self, card: bundled)
    assert locate_config(registry, "qwen2") == bundled / "config.json"


@pytest.mark.parametrize(
    ("ref", "repo"), [("org/name", "org/name"), ("qwen2:7b", "Qwen/Qwen2.5-7B-Instruct")]
)
def test_of_a_hub_repository_the_config_alone_is_fetched(
    ref: str, repo: str, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def fetch(*request: str | None) -> Path:
        asked.append(request)
        return tmp_path

    monkeypatch.setattr(plan_report, "download_config", fetch)
    folder_with(tmp_path, QWEN25_7B)
    assert read_report(registry, ref).reading.path == tmp_path / "config.json"
    assert read_report(registry, ref, revision="v1").reading.path == tmp_path / "config.json"
    assert asked == [(repo, None), (repo, "v1")]


def test_what_is_not_on_the_hub_has_no_revision(registry: Registry, tmp_path: Path) -> None:
    folder = folder_with(tmp_path, QWEN25_7B)
    for ref in (folder, f"{folder}/config.json"):
        with pytest.raises(RequestError, match="no revision 'v1'"):
            read_report(registry, ref, revision="v1")
