"""The checkpoint that the wheel carries."""

from fuel_core.testing import BundledCheckpoint


class TestBundledPhi3(BundledCheckpoint):
    family = "phi3"
    held_out_nats = 2.86
