"""The checkpoint that the wheel carries."""

from fuel_core.testing import BundledCheckpoint


class TestBundledLlama(BundledCheckpoint):
    family = "llama"
    held_out_nats = 2.89
