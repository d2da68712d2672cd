"""A family card that could never be used is refused where it is written."""

import pytest

from fuel_core.errors import PluginError
from fuel_core.plugin import FamilyCard

GOOD = {
    "name": "toy2.5",
    "model_types": ("toy",),
    "definition": "fuel_toy.model:TOY",
    "summary": "a toy",
    "source": "nowhere",
    "aliases": ("toy",),
    "presets": {"0.5b": "Toys/Toy2.5-0.5B"},
    "bundled": "fuel_toy:checkpoints/toy",
}


def test_a_good_card_is_hashable_and_its_presets_cannot_be_changed() -> None:
    card = FamilyCard(**GOOD)
    assert {card: 1}[FamilyCard(**GOOD)] == 1
    with pytest.raises(TypeError):
        card.presets["7b"] = "Toys/Toy2.5-7B"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "Toy"),
        ("name", "toy:0.5b"),
        ("name", "toys/toy"),
        ("name", "toy\n"),
        ("name", ""),
        ("name", None),
        ("model_types", ("toy")),
        ("model_types", ["toy"]),
        ("model_types", ()),
        ("model_types", ("",)),
        ("aliases", "toy"),
        ("aliases", ("Toy",)),
        ("definition", "fuel_toy.model"),
        ("definition", "fuel_toy.model:TOY.inner"),
        ("definition", "fuel-toy:TOY"),
        ("summary", None),
        ("source", None),
        ("presets", {"0.5b": "Toy2.5-0.5B"}),
        ("presets", {"0.5b": "https://example.org/Toys/Toy"}),
        ("presets", {"0.5 b": "Toys/Toy"}),
        ("presets", None),
        ("bundled", "checkpoints/toy"),
        ("bundled", "fuel_toy:/checkpoints/toy"),
    ],
)
def test_a_card_that_could_never_be_used_names_field_and_value(field: str, value: object) -> None:
    with pytest.raises(PluginError) as caught:
        FamilyCard(**{**GOOD, field: value})
    assert field in str(caught.value)
    assert repr(value) in str(caught.value)


def test_claims_are_names_aliases_and_model_types_each_once() -> None:
    card = FamilyCard(**{**GOOD, "aliases": ("toy", "toy2.5", "toy")})
    assert card.claims() == (("name", "toy2.5"), ("name", "toy"), ("model_type", "toy"))
