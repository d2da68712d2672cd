"""The Qwen families against the conformance kit."""

from pathlib import Path

from fuel_core.testing import Conformance

GOLDENS = Path(__file__).parent / "goldens"


class TestQwen2(Conformance):
    family = "qwen2"
    goldens = GOLDENS


class TestQwen3(Conformance):
    family = "qwen3"
    goldens = GOLDENS


class TestQwen2MoE(Conformance):
    family = "qwen2_moe"
    goldens = GOLDENS


class TestQwen3MoE(Conformance):
    family = "qwen3_moe"
    goldens = GOLDENS
