"""Llama, Mistral and SmolLM3 against the conformance kit."""

from pathlib import Path

from fuel_core.testing import Conformance

GOLDENS = Path(__file__).parent / "goldens"


class TestLlama(Conformance):
    family = "llama"
    goldens = GOLDENS


class TestMistral(Conformance):
    family = "mistral"
    goldens = GOLDENS


class TestSmolLM3(Conformance):
    family = "smollm3"
    goldens = GOLDENS
