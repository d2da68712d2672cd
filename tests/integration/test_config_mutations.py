"""Thousands of damaged config.json files: a plan of what they say, or an error that names the key.

Each starts from a published file or a tiny one and is damaged at one to three places. A plan that
comes out is compared with what an independent, naive reading of the damaged file says.
"""

import copy
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuel_core.config import FamilyConfig, Fate, Ledger, read_json_object
from fuel_core.errors import ConfigError
from fuel_core.family import Family
from fuel_core.plans import LongRopeScaling, ModelPlan, RopeVariant
from fuel_core.step import StepTables

FOLDER = Path(__file__).parents[1] / "fixtures" / "configs"
PUBLISHED = [
    read_json_object(path)
    for path in sorted(FOLDER.glob("qwen2*.json"))
    if read_json_object(path)["model_type"] == "qwen2"
]
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
TINY: dict[str, Any] = {
    "model_type": "qwen2",
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-3,
    "rope_theta": 37.0,
    "tie_word_embeddings": True,
    "hidden_act": "gelu",
    "torch_dtype": "float16",
}
CONFIGS = [
    *PUBLISHED,
    {**TINY, "use_sliding_window": True, "sliding_window": 7, "max_window_layers": 2},
    {
        **TINY,
        "sliding_window": 5,
        "layer_types": ["sliding_attention", "full_attention", "full_attention", "sliding_attention"],
    },
    {**TINY, "head_dim": 12, "rope_scaling": {**YARN, "beta_fast": 16, "truncate": False}},
    {**TINY, "rope_theta": None, "rope_parameters": {**YARN, "rope_theta": 41.0, "mscale": 0.5}},
    {
        **TINY,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
    {
        **TINY,
        "rope_scaling": {
            "rope_type": "longrope",
            "short_factor": [1.0, 1.1, 1.2, 1.3],
            "long_factor": [2.0, 3.0, 4.0, 5.0],
            "original_max_position_embeddings": 64,
        },
    },
]

SCALARS: list[Any] = [
    None, True, False,
    0, 1, 2, 3, 7, 24, 64, 100, -1, -64, 2**31 - 1, 2**31, 2**63, -(2**70), 10**12, 10**400,
    0.0, 0.5, 1.0, 2.5, 8.0, 1e-6, -1.5, 1e-300, 1e30, 1e300, math.nan, math.inf, -math.inf,
    "", "64", "text", "silu", "gelu", "yarn", "linear", "default", "bfloat16", "torch.float32", "auto",
    "\ud800",
]  # fmt: skip
VALUES = st.one_of(
    st.sampled_from(SCALARS),
    st.sampled_from(
        [
            [],
            {},
            [4],
            {"a": 4},
            ["full_attention"] * 4,
            ["sliding_attention"] * 4,
            {"type": "linear", "factor": 2.0},
            {"type": "dynamic", "factor": 2.0},
            {"rope_type": "default", "rope_theta": 5e5},
            {"full_attention": {"rope_type": "default"}},
            {"": {"rope_type": "default"}},
            dict(YARN),
        ]
    ),
    st.recursive(
        st.sampled_from(SCALARS),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
        max_leaves=5,
    ),
)
NEW_KEYS = [
    "attention_bias", "dtype", "head_dim", "layer_types", "pretraining_tp", "quantization_config",
    "rope_parameters", "rope_ratio", "rope_scaling", "rope_theta", "sliding_window", "text_config",
    "use_mrope",
]  # fmt: skip
RECIPE_KEYS = [
    "attention_factor", "attn_factor", "beta_fast", "beta_slow", "factor", "mscale", "mscale_all_dim",
    "original_max_position_embeddings", "rope_theta", "rope_type", "short_factor", "truncate", "type",
]  # fmt: skip

Damage = Callable[[st.DataObject, dict[str, Any]], set[str]]
"""Damages a dict in place; returns the keys concerned."""


def some_key(data: st.DataObject, raw: dict[str, Any]) -> str:
    return data.draw(st.sampled_from(sorted(raw)), label="key")


def drop(data: st.DataObject, raw: dict[str, Any]) -> set[str]:
    key = some_key(data, raw)
    del raw[key]
    return {key}


def empty(data: st.DataObject, raw: dict[str, Any]) -> set[str]:
    """Absent, null, zero and empty are four things."""
    key = some_key(data, raw)
    raw[key] = data.draw(st.sampled_from([None, None, 0, "", [], {}]), label="value")
    return {key}


def replace_value(data: st.DataObject, raw: dict[str, Any]) -> set[str]:
    key = some_key(data, raw)
    raw[key] = data.draw(VALUES, label="value")
    return {key}


def nudge(data: st.DataObject, raw: dict[str, Any]) -> set[str]:
    """A small change that keeps the kind of value, or a spelling of the same number."""
    key = some_key(data, raw)
    value = raw[key]
    if isinstance(value, bool):
        raw[key] = data.draw(st.sampled_from([not value, int(value), str(value).lower()]))
    elif isinstance(value, int):
        raw[key] = data.draw(
            st.sampled_from([value + 1, 2 * value, value // 2, -value, float(value), str(value)])
        )
    elif isinstance(value, float):
        raw[key] = data.draw(st.sampled_from([2 * value, value / 3, -value, str(value)]))
    elif isinstance(value, str):
        raw[key] = data.draw(st.sampled_from([value.upper(), value + " ", [value]]))
    elif isinstance(value, list):
        raw[key] = data.draw(
            st.sampled_from([value[1:], [*value, *value[:1]], value[::-1], tuple(value), [value]])
        )
    else:
        raw[key] = 1
    return {key}


def rename(data: st.DataObject, raw: dict[str, Any]) -> set[str]:
    key = some_key(data, raw)
    spellings = [key.upper(), key + "_", key.replace("_", ""), key.replace("_", "-"), f" {key}", "n_" + key]
    new = data.draw(st.sampled_from([*spellings, "dtype", "rope_parameters", "head_dim"]), label="new name")
    raw[new] = raw.pop(key)
    return {key, new}


def nest(data: st.DataObject, raw: dict[str, Any]) -> set[str]:
    key = some_key(data, raw)
    value = raw.pop(key)
    outer = data.draw(st.sampled_from([key, "text_config", "model"]))
    raw[outer] = data.draw(st.sampled_from([{key: value}, [value], {"value": value}]))
    return {key, outer}


def swap(data: st.DataObject, raw: dict[str, Any]) -> set[str]:
    first, second = some_key(data, raw), some_key(data, raw)
    raw[first], raw[second] = raw[second], raw[first]
    return {first, second}


def add(data: st.DataObject, raw: dict[str, Any]) -> set[str]:
    key = data.draw(st.sampled_from(NEW_KEYS), label="new key")
    raw[key] = data.draw(VALUES, label="value")
    return {key}


def add_to_recipe(data: st.DataObject, raw: dict[str, Any]) -> set[str]:
    key = data.draw(st.sampled_from(RECIPE_KEYS), label="new key")
    raw[key] = data.draw(VALUES, label="value")
    return {key}


ANYWHERE: list[Damage] = [drop, empty, replace_value, replace_value, nudge, nudge, rename, nest, swap]
TOP, INNER = [*ANYWHERE, add], [*ANYWHERE, add_to_recipe]


def damage(data: st.DataObject, raw: dict[str, Any]) -> set[str]:
    """Damage a config at one place: at the top, or half of the time inside a recipe if it has one."""
    recipes = [
        key for key in ("rope_scaling", "rope_parameters") if isinstance(raw.get(key), dict) and raw[key]
    ]
    if recipes and data.draw(st.booleans(), label="inside"):
        outer = recipes[0]
        return data.draw(st.sampled_from(INNER))(data, raw[outer])
    return data.draw(st.sampled_from(TOP))(data, raw)


def naive_windows(raw: dict[str, Any]) -> list[int | None]:
    layers, width = raw["num_hidden_layers"], raw.get("sliding_window", raw["max_position_embeddings"])
    if raw.get("layer_types") is not None:
        slides = [kind == "sliding_attention" for kind in raw["layer_types"]]
    else:
        split = raw.get("max_window_layers")
        split = layers if split is None else split
        slides = [raw.get("use_sliding_window", False) and layer < split for layer in range(layers)]
    return [(width or None) if slide else None for slide in slides]


NEUTRAL: dict[str, Any] = {"use_mrope": False, "pretraining_tp": 1, "quantization_config": None}
"""Keys of the damaged files that may stand there at one value only."""


def check_recipe(raw: dict[str, Any], recipe: dict[str, Any], variant: RopeVariant) -> None:
    base = recipe.get("rope_theta")
    if base is None:
        base = 1e6 if raw.get("rope_theta") is None else raw["rope_theta"]
    assert variant.base == base
    kind = recipe.get("rope_type") or recipe.get("type") or "default"
    assert variant.scaling.kind == {"default": "none", "su": "longrope"}.get(kind, kind)
    numbers = [getattr(variant.scaling, field.name) for field in fields(variant.scaling)]
    for key, value in recipe.items():
        skipped = key in ("rope_type", "type", "rope_theta") or value is None
        if skipped or (key == "factor" and isinstance(variant.scaling, LongRopeScaling)):
            continue
        assert (tuple(value) if isinstance(value, list) else value) in numbers, key


def check_says_what_the_file_says(
    raw: dict[str, Any], config: FamilyConfig, ledger: Ledger, plan: ModelPlan
) -> None:
    """Compare config and plan with a reading that knows the keys, and none of the code."""

    def stated(key: str, default: Any) -> Any:
        return default if raw.get(key) is None else raw[key]

    assert [entry.key for entry in ledger] == list(raw)
    assert not ledger.of(Fate.REFUSED)
    for key, value in NEUTRAL.items():
        assert repr(raw.get(key, value)) == repr(value)
    for entry in ledger.of(Fate.USED):
        if entry.value is None or entry.key == "model_type":  # which chose the family, and no field holds
            continue
        held = getattr(config, entry.key)
        assert (list(held) if isinstance(held, tuple) else held) == (
            list(entry.value) if isinstance(entry.value, tuple) else entry.value
        )
        assert isinstance(held, bool) == isinstance(entry.value, bool)
        assert isinstance(held, str) == isinstance(entry.value, str)

    heads = raw["num_attention_heads"]
    head_dim = stated("head_dim", raw["hidden_size"] // heads)
    mixer, mlp = plan.layers[-1].mixer, plan.layers[-1].feed_forward
    found = {
        "vocab_size": plan.vocab_size,
        "hidden_size": plan.hidden_size,
        "layers": len(plan.layers),
        "heads": (mixer.query_heads, mixer.kv_heads, mixer.head_dim, mixer.scale),
        "mlp": (mlp.width, mlp.activation),
        "eps": plan.norm.eps,
        "tied": plan.tied,
        "context": plan.max_positions,
        "windows": [plan.mask.window(layer) for layer in range(plan.mask.layers)],
        "cache": plan.cache.elements_per_token,
        "dtype": config.stored_dtype,
    }
    kv_heads = stated("num_key_value_heads", heads)
    dtypes = [stated(key, "auto").removeprefix("torch.") for key in ("dtype", "torch_dtype")]
    assert found == {
        "vocab_size": raw["vocab_size"],
        "hidden_size": raw["hidden_size"],
        "layers": raw["num_hidden_layers"],
        "heads": (heads, kv_heads, head_dim, head_dim**-0.5),
        "mlp": (raw["intermediate_size"], raw.get("hidden_act", "silu")),
        "eps": raw.get("rms_norm_eps", 1e-6),
        "tied": raw.get("tie_word_embeddings", False),
        "context": raw["max_position_embeddings"],
        "windows": naive_windows(raw),
        "cache": 2 * kv_heads * head_dim * raw["num_hidden_layers"],
        "dtype": next((name for name in dtypes if name != "auto"), None),
    }

    variant = plan.rope.variants[0]
    assert variant.width == head_dim
    for recipe in [raw[key] for key in ("rope_parameters", "rope_scaling") if raw.get(key)] or [{}]:
        check_recipe(raw, recipe, variant)
    if head_dim <= 4096:
        tables = StepTables.of(plan, torch.device("cpu"))
        frequencies = tables.ropes[0].inverse_frequencies
        assert ((frequencies > 0) & frequencies.isfinite()).all()


def test_two_thousand_damaged_configs(qwen2: Family) -> None:
    """Crashes of other kinds (OverflowError, ZeroDivisionError, RecursionError, a machine out of memory)
    and values that were converted or dropped in silence."""
    outcomes: Counter[str] = Counter()

    @settings(
        max_examples=2000,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(st.data())
    def run(data: st.DataObject) -> None:
        raw = copy.deepcopy(data.draw(st.sampled_from(CONFIGS), label="config"))
        touched: set[str] = set()
        for _ in range(data.draw(st.sampled_from([1, 1, 1, 2, 3]), label="places")):
            touched |= damage(data, raw)
        refusal = None
        try:
            config, ledger = qwen2.config.read(raw, source="config.json")
            plan = qwen2.plan(config, qwen2.options())
        except ConfigError as error:
            refusal = str(error)
        if refusal is None:
            outcomes["planned"] += 1
            check_says_what_the_file_says(raw, config, ledger, plan)
        else:
            outcomes["refused"] += 1
            assert any(key in refusal for key in touched), f"{touched} not named in: {refusal}"

    run()
    assert outcomes.total() >= 2000
    assert min(outcomes["refused"], outcomes["planned"]) > 300, f"vacuous: {outcomes}"


@pytest.mark.parametrize("raw", CONFIGS, ids=range(len(CONFIGS)))
def test_the_undamaged_configs_are_read_as_they_say(raw: dict[str, Any], qwen2: Family) -> None:
    """Non-vacuity: the naive reading is right, and each starting point does give a plan."""
    config, ledger = qwen2.config.read(raw, source="config.json")
    check_says_what_the_file_says(raw, config, ledger, qwen2.plan(config, qwen2.options()))


def test_there_are_published_starting_points() -> None:
    assert len(PUBLISHED) == 6
