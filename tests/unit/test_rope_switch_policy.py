"""Where a sequence changes RoPE tables is part of the plan, and shown with what happens there."""

import json
from pathlib import Path
from typing import Any

import pytest

from fuel_core.family import Family
from fuel_core.inspection.plan_report import SWITCH_POLICY, read_report
from fuel_core.registry import Registry
from fuel_core.testing import Case


def raw(qwen2: Family, **changes: Any) -> dict[str, Any]:
    recipe = {
        "rope_type": "longrope",
        "short_factor": [1.0] * 4,
        "long_factor": [2.0] * 4,
        "original_max_position_embeddings": 32,
    }
    return {**qwen2.tiny["dense"], "max_position_embeddings": 256, "rope_scaling": recipe, **changes}


@pytest.mark.parametrize(("context", "length"), [(256, 32), (33, 32), (32, None), (16, None)])
def test_a_sequence_must_be_able_to_outgrow_the_first_table(
    context: int, length: int | None, qwen2: Family
) -> None:
    plan = Case.build(qwen2, "dense", raw=raw(qwen2, max_position_embeddings=context)).plan
    assert plan.switch_length == length


def test_one_table_serves_every_length(qwen2: Family) -> None:
    assert Case.build(qwen2, "dense").plan.switch_length is None
    assert Case.build(qwen2, "yarn").plan.switch_length is None


def test_the_report_says_what_happens(qwen2: Family, tmp_path: Path) -> None:
    found = {}
    for name, content in (("two", raw(qwen2)), ("one", dict(qwen2.tiny["dense"]))):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(content))
        found[name] = read_report(Registry.discover(), str(path)).as_dict()["rope"]["switch"]
    assert found == {"two": {"length": 32, "policy": SWITCH_POLICY}, "one": None}
    assert "prefilled again once" in SWITCH_POLICY
