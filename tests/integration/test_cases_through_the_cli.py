"""Faults that people met in comparable engines, put to ``fuel plan`` and ``fuel run`` as a user would."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fuel_core.cli.app import app

BASE = {
    "model_type": "qwen2",
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 2048,
    "rope_theta": 10_000.0,
}
ABSENT = object()

Plan = Callable[..., dict[str, Any]]


def fuel(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.stdout, " ".join(result.stderr.split())


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., Path]:
    def write(**changes: Any) -> Path:
        raw = {key: value for key, value in {**BASE, **changes}.items() if value is not ABSENT}
        path = tmp_path / "config.json"
        path.write_text(json.dumps(raw))
        return path

    return write


@pytest.fixture
def plan(config: Callable[..., Path]) -> Plan:
    def read(**changes: Any) -> dict[str, Any]:
        status, out, err = fuel("plan", config(**changes), "--json")
        assert status == 0, err
        report: dict[str, Any] = json.loads(out)
        return report

    return read


class TestAttentionGeometry:
    """An explicit head_dim beats division; null and absent are one thing; nothing is rounded down."""

    @pytest.mark.parametrize(
        ("changes", "heads", "kv_heads", "head_dim"),
        [
            (
                {"hidden_size": 5120, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128},
                32,
                8,
                128,
            ),
            (
                {"hidden_size": 1792, "num_attention_heads": 24, "num_key_value_heads": 8, "head_dim": 128},
                24,
                8,
                128,
            ),
            ({"num_key_value_heads": None, "head_dim": None}, 4, 4, 16),
            ({}, 4, 4, 16),
            ({"num_key_value_heads": 1}, 4, 1, 16),
        ],
    )
    def test_is_read(
        self, plan: Plan, changes: dict[str, Any], heads: int, kv_heads: int, head_dim: int
    ) -> None:
        mixer = plan(**changes)["layers"][0]["mixer"]
        assert (mixer["query_heads"], mixer["kv_heads"], mixer["head_dim"]) == (heads, kv_heads, head_dim)
        assert mixer["scale"] == pytest.approx(head_dim**-0.5)

    def test_what_does_not_divide_is_refused(self, config: Callable[..., Path]) -> None:
        status, _, err = fuel("plan", config(hidden_size=1792, num_attention_heads=24))
        assert status == 1
        assert all(word in err for word in ("head_dim", "hidden_size (1792)", "num_attention_heads (24)"))


LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 1024,
}


class TestRopeSpellings:
    """Four spellings of one recipe; the base inside a dict beats the one outside; nothing falls back."""

    @pytest.mark.parametrize(
        "changes",
        [
            {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
            {"rope_theta": 5e5, "rope_scaling": {"type": "llama3", **LLAMA3}},
            {"rope_theta": 5e5, "rope_scaling": {"type": "llama3", "rope_type": "llama3", **LLAMA3}},
            {"rope_theta": ABSENT, "rope_parameters": {"rope_theta": 5e5, "rope_type": "llama3", **LLAMA3}},
        ],
    )
    def test_are_one_recipe(self, plan: Plan, changes: dict[str, Any]) -> None:
        wanted = plan(rope_theta=5e5, rope_scaling={"rope_type": "llama3", **LLAMA3})["rope"]
        assert plan(**changes)["rope"] == wanted
        assert plan(rope_theta=5e5)["rope"] != wanted

    def test_the_inner_base_wins_and_is_told(self, plan: Plan) -> None:
        report = plan(rope_parameters={"rope_theta": 5e5, "rope_type": "default"})
        assert report["rope"] == plan(rope_theta=5e5)["rope"]
        assert any("500000" in note and "10000" in note for note in report["notes"])

    @pytest.mark.parametrize(
        ("scaling", "named"),
        [
            ({"rope_type": "made_up"}, "'made_up'"),
            ({"rope_type": "linear", "type": "dynamic", "factor": 2.0}, "two kinds"),
        ],
    )
    def test_contradictions_are_refused(
        self, config: Callable[..., Path], scaling: dict[str, Any], named: str
    ) -> None:
        status, _, err = fuel("plan", config(rope_scaling=scaling))
        assert status == 1
        assert named in err
        assert "rope_scaling" in err


class TestDtype:
    @pytest.mark.parametrize(
        "keys",
        [
            {"dtype": "bfloat16"},
            {"torch_dtype": "bfloat16"},
            {"torch_dtype": "torch.bfloat16"},
            {"dtype": "bfloat16", "torch_dtype": "bfloat16"},
        ],
    )
    def test_spellings_agree_and_the_cache_follows(self, plan: Plan, keys: dict[str, str]) -> None:
        numerics = plan(**keys)["numerics"]
        assert (numerics["weights"], numerics["cache"]) == ("bfloat16", "bfloat16")

    def test_an_unknown_name_is_refused(self, config: Callable[..., Path]) -> None:
        status, _, err = fuel("plan", config(dtype="bf17"))
        assert (status, "'bf17'" in err) == (1, True)


class TestDynamicScaling:
    """The published rule contradicts cached keys, so nothing runs beyond the trained length."""

    def test_the_limit_is_the_trained_length(self, plan: Plan) -> None:
        scaling = {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 512}
        assert plan(rope_scaling=scaling)["position_limit"] == 512

    @pytest.mark.filterwarnings("ignore:.*rope_scaling is dynamic")
    def test_more_is_refused_before_anything_runs(self, checkpoint: Callable[..., Path]) -> None:
        scaling = {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 16}
        folder = checkpoint(rope_scaling=scaling)
        assert fuel("run", folder, "Hello", "--max-tokens", 11)[0] == 0
        status, out, err = fuel("run", folder, "Hello", "--max-tokens", 12)
        assert (status, out) == (1, "")
        assert "5 tokens and 12 new ones exceed the 16 positions" in err


class TestWindows:
    """Which layers slide, as Qwen documents it; where transformers reads it otherwise, a note says so."""

    @pytest.mark.parametrize(
        ("changes", "sliding", "noted"),
        [
            ({"use_sliding_window": True, "sliding_window": 500, "max_window_layers": 28}, range(28), True),
            ({"use_sliding_window": True, "sliding_window": 500, "max_window_layers": 36}, range(36), True),
            ({"sliding_window": 2048}, (), True),
            ({"use_sliding_window": False, "sliding_window": 131_072}, (), False),
            (
                {
                    "use_sliding_window": True,
                    "sliding_window": 500,
                    "max_window_layers": 28,
                    "layer_types": ["full_attention"] * 30 + ["sliding_attention"] * 6,
                },
                range(30, 36),
                False,
            ),
        ],
    )
    def test_by_layer(self, plan: Plan, changes: dict[str, Any], sliding: range, noted: bool) -> None:
        report = plan(num_hidden_layers=36, **changes)
        assert [entry["layer"] for entry in report["layers"] if entry["window"]] == list(sliding)
        assert any("slide" in note for note in report["notes"]) is noted
        assert report["cache"]["context"] == 2048, "a window shortens no cache"

    def test_without_a_count_every_layer_slides(self, plan: Plan) -> None:
        report = plan(num_hidden_layers=5, use_sliding_window=True, sliding_window=500)
        assert all(entry["window"] == 500 for entry in report["layers"])
