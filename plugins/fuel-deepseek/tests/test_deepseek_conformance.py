"""DeepSeek-V2 and V3 against the conformance kit."""

from pathlib import Path

from fuel_core.testing import Conformance

GOLDENS = Path(__file__).parent / "goldens"


class TestDeepSeekV2(Conformance):
    family = "deepseek_v2"
    goldens = GOLDENS


class TestDeepSeekV3(Conformance):
    family = "deepseek_v3"
    goldens = GOLDENS
