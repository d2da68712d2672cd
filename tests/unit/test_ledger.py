"""Every key of a config.json ends in exactly one way, and says why."""

import math
from typing import Any, ClassVar

import pytest

from fuel_core.config import ANY_VALUE, FamilyConfig, Fate, Ledger
from fuel_core.config.ledger import IRRELEVANT
from fuel_core.errors import ConfigError

REQUIRED: dict[str, Any] = {
    "vocab_size": 8,
    "hidden_size": 4,
    "num_hidden_layers": 2,
    "max_position_embeddings": 16,
}


class Toy(FamilyConfig):
    irrelevant: ClassVar = {"use_mrope": (False,), "toy_note": ANY_VALUE}

    width: int = 3


def fate(key: str, value: Any) -> Fate:
    (entry,) = Ledger.open({key: value}, frozenset(Toy.model_fields), {**IRRELEVANT, **Toy.irrelevant})
    return entry.fate


def test_every_key_has_one_fate_in_the_order_of_the_file() -> None:
    raw = {**REQUIRED, "width": 3, "use_cache": True, "toy_note": [1], "made_up": 5, "pretraining_tp": 1}
    _, ledger = Toy.read(raw, source="toy", allow_unknown_keys=True)
    assert [entry.key for entry in ledger] == list(raw)
    assert [entry.value for entry in ledger] == list(raw.values())
    by_fate = {fate: [entry.key for entry in ledger.of(fate)] for fate in Fate}
    assert by_fate == {
        Fate.USED: [*REQUIRED, "width"],
        Fate.IRRELEVANT: ["use_cache", "toy_note", "pretraining_tp"],
        Fate.REFUSED: ["made_up"],
    }
    assert all(entry.reason for entry in ledger)


def test_an_unknown_key_is_refused_with_its_name_and_the_remedy() -> None:
    """Dropped in silence, a key that changes the forward pass gives fluent wrong text."""
    with pytest.raises(ConfigError) as caught:
        Toy.read({**REQUIRED, "rope_ratio": 2, "new_gate": True}, source="here/config.json")
    message = str(caught.value)
    for part in ("here/config.json", "rope_ratio", "new_gate"):
        assert part in message
    assert "allow_unknown_keys=True" in message
    assert "--allow-unknown-keys" in message


def test_allowed_unknown_keys_stay_refused_in_the_ledger() -> None:
    config, ledger = Toy.read({**REQUIRED, "rope_ratio": 2}, source="toy", allow_unknown_keys=True)
    assert config.vocab_size == 8
    assert [entry.key for entry in ledger.of(Fate.REFUSED)] == ["rope_ratio"]


def test_allowing_unknown_keys_excuses_no_wrong_value() -> None:
    with pytest.raises(ConfigError, match="vocab_size"):
        Toy.read({**REQUIRED, "rope_ratio": 2, "vocab_size": "8"}, source="toy", allow_unknown_keys=True)


@pytest.mark.parametrize(
    ("key", "neutral", "others"),
    [
        ("use_mrope", False, [True, None, 0, "false"]),
        ("pretraining_tp", 1, [2, 1.0, True, "1"]),
        ("is_encoder_decoder", False, [True, 0]),
        ("chunk_size_feed_forward", 0, [1, False, 0.0]),
        ("pruned_heads", {}, [{"0": [1]}, [], False]),
    ],
)
def test_a_key_that_could_matter_passes_only_at_its_neutral_value(
    key: str, neutral: Any, others: list[Any]
) -> None:
    """And at that value's type: Python takes 0 for False and 1.0 for True, a config must not."""
    assert fate(key, neutral) is Fate.IRRELEVANT
    assert {repr(other): fate(key, other) for other in others} == {
        repr(other): Fate.REFUSED for other in others
    }


def test_a_refused_value_is_shown_with_what_would_pass() -> None:
    with pytest.raises(ConfigError, match=r"use_mrope: it is True; this family runs only with False"):
        Toy.read({**REQUIRED, "use_mrope": True}, source="toy")


@pytest.mark.parametrize("value", [0, None, "x", [1, 2], {"a": 1}, math.nan, 10**400])
def test_a_key_of_no_consequence_passes_at_any_value(value: Any) -> None:
    assert fate("eos_token_id", value) is Fate.IRRELEVANT
    assert fate("toy_note", value) is Fate.IRRELEVANT


def test_a_family_uses_a_key_that_core_passes_over() -> None:
    """A key that one family reads must not be lost because core calls it irrelevant for the others."""

    class Reader(FamilyConfig):
        hidden_dropout: float = 0.0

    config, ledger = Reader.read({**REQUIRED, "hidden_dropout": 0.5}, source="toy")
    assert config.hidden_dropout == 0.5
    assert [entry.key for entry in ledger.of(Fate.USED)][-1] == "hidden_dropout"


def test_a_familys_word_on_a_key_replaces_cores() -> None:
    class Strict(FamilyConfig):
        irrelevant: ClassVar = {"use_cache": (True,)}

    with pytest.raises(ConfigError, match="use_cache: it is False"):
        Strict.read({**REQUIRED, "use_cache": False}, source="toy")


def test_the_key_that_chose_the_family_is_used() -> None:
    """fuel plan called model_type irrelevant: a key that "cannot change a forward pass"."""
    _, ledger = Toy.read({**REQUIRED, "model_type": "toy"}, source="toy")
    (entry,) = (entry for entry in ledger if entry.key == "model_type")
    assert (entry.fate, entry.reason) == (Fate.USED, "chose the family")


def test_keys_that_matter_are_not_in_cores_list() -> None:
    """What changes a forward pass of some family is for that family to pass over, never for core."""
    matters = {
        "attention_bias",
        "head_dim",
        "hidden_act",
        "layer_types",
        "logit_scale",
        "mlp_bias",
        "partial_rotary_factor",
        "qk_layernorm",
        "rms_norm_eps",
        "rope_scaling",
        "rope_theta",
        "sliding_window",
        "tie_word_embeddings",
    }
    assert not matters & set(IRRELEVANT)


def test_a_long_or_deep_value_is_shown_cut() -> None:
    """A list of a million factors must not fill the terminal, and a deep one must not overflow the stack."""
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    raw = {**REQUIRED, "pretraining_tp": deep, "chunk_size_feed_forward": [1.0] * 100_000}
    with pytest.raises(ConfigError) as caught:
        Toy.read(raw, source="toy")
    assert len(str(caught.value)) < 1000
    assert "pretraining_tp" in str(caught.value)
