"""Checkpoints that transformers wrote: its spelling of config.json, and tensors as it names them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import fuel_core
from fuel_core.family import Family
from fuel_core.registry import Registry
from fuel_core.testing import Case
from fuel_core.testing.oracle import TransformersOracle


def every_tiny_config() -> list[Any]:
    registry = Registry.discover()
    families = [registry.definition(card) for card in registry.cards]
    return [
        pytest.param(family, tiny, id=f"{family.name}-{tiny}") for family in families for tiny in family.tiny
    ]


@pytest.mark.parametrize(("family", "tiny"), every_tiny_config())
def test_what_transformers_saves_is_the_same_model(family: Family, tiny: str, tmp_path: Path) -> None:
    """transformers 5 writes no rope_theta and no rope_scaling but rope_parameters, and dtype for
    torch_dtype; some families' keys get other names or values (num_local_experts, a sliding_window of 0)."""
    case = Case.build(family, tiny, dtype=torch.float32)
    published, saved = tmp_path / "published", tmp_path / "saved"
    case.save(published)
    TransformersOracle(published).model.save_pretrained(saved)
    keys = set(json.loads((saved / "config.json").read_text()))
    assert keys >= {"dtype", "rope_parameters"}, "vacuous: transformers kept the published spelling"
    assert not keys & {"rope_theta", "rope_scaling", "torch_dtype"}, "vacuous: it wrote both spellings"
    model = fuel_core.load(saved, dtype="float32")
    tokens = case.token_ids(seed=11)
    assert model.plan == case.plan
    assert torch.equal(model.forward([tokens])[0], case.one_shot(tokens))
