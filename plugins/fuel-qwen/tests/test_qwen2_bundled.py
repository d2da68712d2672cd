"""The checkpoint that the wheel carries."""

from fuel_core.testing import BundledCheckpoint


class TestBundledQwen2(BundledCheckpoint):
    family = "qwen2"
    held_out_nats = 2.79
