"""The Phi families against the conformance kit."""

from pathlib import Path

from fuel_core.testing import Conformance

GOLDENS = Path(__file__).parent / "goldens"


class TestPhi3(Conformance):
    family = "phi3"
    goldens = GOLDENS


class TestPhi(Conformance):
    family = "phi"
    goldens = GOLDENS


class TestPhimoe(Conformance):
    family = "phimoe"
    goldens = GOLDENS
