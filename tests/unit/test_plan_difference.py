"""What ``fuel diff`` finds between two plans."""

import json
from pathlib import Path
from typing import Any

import pytest

from fuel_core.inspection.plan_difference import ABSENT, Difference, _unlike, differences
from fuel_core.inspection.plan_report import read_report
from fuel_core.registry import Registry

TINY = {
    "model_type": "qwen2",
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rope_theta": 37.0,
    "transformers_version": "4.43.1",
}


@pytest.fixture
def found(tmp_path: Path) -> Any:
    """The differences between TINY and TINY with other keys: (section, key) -> (a, b)."""
    registry = Registry.discover(strict=True)

    def compare(**keys: Any) -> dict[tuple[str, str], tuple[object, object]]:
        reports = []
        for name, raw in (("a", TINY), ("b", {**TINY, **keys})):
            path = tmp_path / f"{name}.json"
            path.write_text(json.dumps({key: value for key, value in raw.items() if value is not ABSENT}))
            reports.append(read_report(registry, str(path), allow_unknown_keys=True))
        return {(item.section, item.key): (item.a, item.b) for item in differences(*reports)}

    return compare


def test_a_plan_does_not_differ_from_itself(found: Any) -> None:
    assert found() == {}


def test_a_key_that_changes_nothing_is_no_difference(found: Any) -> None:
    assert found(transformers_version="5.0.0") == {}


def test_the_default_spelt_out_differs_in_the_ledger_alone(found: Any) -> None:
    assert found(head_dim=8) == {("ledger", "head_dim"): (ABSENT, "used")}


def test_an_absent_key_is_told_from_a_null_one(found: Any) -> None:
    assert found(head_dim=None) == {("ledger", "head_dim"): (ABSENT, "used")}
    assert found(transformers_version=ABSENT) == {("ledger", "transformers_version"): ("irrelevant", ABSENT)}


def test_windows_and_bases_are_found_in_config_and_plan(found: Any) -> None:
    kinds = ["sliding_attention", "full_attention", "full_attention", "sliding_attention"]
    changes = found(layer_types=kinds, sliding_window=5, use_sliding_window=True, rope_theta=38.0)
    assert changes["config", "layer_types"] == (None, kinds)
    assert changes["config", "rope_theta"] == (37.0, 38.0)
    assert changes["plan", "window"] == ("none", "5 (0, 3); none (1-2)")
    assert changes["plan", "rope_recipe.0.base"] == (37.0, 38.0)


def test_another_spelling_of_one_recipe_leaves_the_plan_alone(found: Any) -> None:
    changes = found(rope_theta=ABSENT, rope_parameters={"rope_type": "default", "rope_theta": 37.0})
    assert {section for section, _ in changes} == {"config", "ledger"}


def test_dtypes_and_bytes_differ_without_a_word_on_layers(found: Any) -> None:
    changes = found(torch_dtype="float16")
    assert changes["numerics", "weights"] == ("float32", "float16")
    assert changes["numerics", "cache"] == ("float32", "float16")
    assert changes["plan", "cache_bytes_per_token"] == (512, 256)
    assert ("plan", "mixer") not in changes


def test_more_layers_differ_by_their_number(found: Any) -> None:
    changes = found(num_hidden_layers=6)
    assert changes["plan", "layers"] == (4, 6)
    assert {key for section, key in changes if section == "plan"} == {
        "layers",
        "parameters",
        "weight_bytes.float32",
        "cache_bytes_per_token",
    }


def test_the_value_of_a_refused_key_counts(found: Any) -> None:
    assert found(odd_key=False)["ledger", "odd_key"] == (ABSENT, "refused at False")


def test_another_kind_of_recipe_is_found_by_its_name(found: Any) -> None:
    yarn = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64}
    assert found(rope_scaling=yarn)["plan", "rope_recipe.0.scaling.kind"] == ("none", "yarn")


def test_a_switch_is_no_number_although_python_says_so() -> None:
    assert list(_unlike({"a": {"b": 0}, "c": 1.0}, {"a": {"b": False}, "c": 1})) == [("a.b", 0, False)]


def test_json_leaves_an_absent_side_out() -> None:
    difference = Difference(section="config", key="head_dim", a=ABSENT, b=None)
    assert difference.as_dict() == {"section": "config", "key": "head_dim", "b": None}
