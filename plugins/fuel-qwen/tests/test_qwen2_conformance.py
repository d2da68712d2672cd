"""Qwen2 against the conformance kit."""

from pathlib import Path

from fuel_core.testing import Conformance


class TestQwen2(Conformance):
    family = "qwen2"
    goldens = Path(__file__).parent / "goldens"
