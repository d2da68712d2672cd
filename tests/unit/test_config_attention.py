"""Heads and head sizes: what is stated wins, what is absent is derived, nothing is rounded."""

from typing import Any

import pytest

from fuel_core.config import AttentionKeys
from fuel_core.errors import ConfigError


def read(**keys: Any) -> AttentionKeys:
    raw = {"vocab_size": 8, "num_hidden_layers": 2, "max_position_embeddings": 16, **keys}
    return AttentionKeys.read(raw, source="here/config.json")[0]


def refusal(**keys: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        read(**keys)
    return str(caught.value)


@pytest.mark.parametrize(
    ("keys", "kv_heads", "head_dim"),
    [
        ({"hidden_size": 5120, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}, 8, 128),
        ({"hidden_size": 1792, "num_attention_heads": 24, "num_key_value_heads": 8, "head_dim": 128}, 8, 128),
    ],
    ids=["Mistral-Nemo", "heads that do not divide the width"],
)
def test_a_stated_head_dim_beats_the_division(keys: dict[str, Any], kv_heads: int, head_dim: int) -> None:
    """5120 / 32 is 160, and Mistral-Nemo's heads have 128; 1792 / 24 is no number at all, yet the model
    is published and right."""
    config = read(**keys)
    assert (config.num_key_value_heads, config.head_dim) == (kv_heads, head_dim)


@pytest.mark.parametrize(
    "extra", [{}, {"num_key_value_heads": None, "head_dim": None}], ids=["absent", "null"]
)
def test_absent_and_null_keys_are_derived(extra: dict[str, Any]) -> None:
    """Phi states null key/value heads; engines crashed on it, or on the key's absence."""
    config = read(hidden_size=64, num_attention_heads=4, **extra)
    assert (config.num_key_value_heads, config.head_dim) == (4, 16)


def test_one_key_value_head_stays_one() -> None:
    """True multi-query attention: "no value, so all heads" is the plausible misreading."""
    config = read(hidden_size=64, num_attention_heads=14, num_key_value_heads=1, head_dim=4)
    assert config.num_key_value_heads == 1


def test_a_head_dim_that_cannot_be_derived_names_all_numbers() -> None:
    """Rounded down to 74, the heads would cover 1776 of 1792 dimensions."""
    message = refusal(hidden_size=1792, num_attention_heads=24)
    for part in ("hidden_size (1792)", "num_attention_heads (24)", "head_dim"):
        assert part in message


@pytest.mark.parametrize("kv_heads", [3, 8])
def test_groups_must_come_out_even(kv_heads: int) -> None:
    message = refusal(hidden_size=64, num_attention_heads=4, num_key_value_heads=kv_heads)
    assert "num_attention_heads (4)" in message
    assert f"num_key_value_heads ({kv_heads})" in message


@pytest.mark.parametrize("key", ["num_attention_heads", "num_key_value_heads", "head_dim"])
@pytest.mark.parametrize("value", [0, -1, 4.0, "4", True])
def test_head_counts_are_positive_whole_numbers(key: str, value: Any) -> None:
    keys = {"hidden_size": 64, "num_attention_heads": 4, key: value}
    assert f"{key} is {value!r}" in refusal(**keys)


def test_a_missing_head_count_is_named_once() -> None:
    assert refusal(hidden_size=64) == "here/config.json: num_attention_heads is missing"
