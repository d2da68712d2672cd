"""The checkpoint that the wheel carries."""

from fuel_core.testing import BundledCheckpoint


class TestBundledDeepSeek(BundledCheckpoint):
    family = "deepseek_v2"
    held_out_nats = 2.88
