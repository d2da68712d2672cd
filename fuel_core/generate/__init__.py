"""Choosing tokens: sampling, stopping and the generation loop."""
