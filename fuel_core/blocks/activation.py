"""The activations that config.json files name."""

from fuel_core.ops.activation import activation

__all__ = ["activation"]
