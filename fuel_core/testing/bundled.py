"""The tests of a checkpoint that a wheel carries: a class that a plugin's test file inherits from."""

from pathlib import Path
from typing import ClassVar

import pytest
import torch

from fuel_core.loading import load
from fuel_core.model import LanguageModel
from fuel_core.registry import Registry
from fuel_core.testing.checks import ORACLE_ABSOLUTE, assert_close
from fuel_core.testing.oracle import TransformersOracle

POSITIONS, PREFILLED = 64, 16
"""Tokens that are compared, and how many of them a session gets at once."""

VERSES = (
    "And God said, Let there be light: and there was light.",
    "And it came to pass, when Joshua had made an end of slaying all the inhabitants of Ai in the field, "
    "that all the Israelites returned unto Ai, and smote it with the edge of the sword.",
    "Now these are the generations of the sons of Noah, Shem, Ham, and Japheth: and unto them were sons "
    "born after the flood.",
)
"""Of the text that the bundled checkpoints are trained on, in three styles."""


class BundledCheckpoint:
    """A bundled checkpoint is whole, trained, and the same in transformers.

    Attributes:
        family: the family whose card names it; its plugin must be installed.
        held_out_nats: the loss a token of held-out text, as the model card states it. The verses, most
            of which the model has seen, must be likelier.
    """

    family: ClassVar[str]
    held_out_nats: ClassVar[float]

    @pytest.fixture(scope="class")
    @classmethod
    def folder(cls) -> Path:
        registry = Registry.discover()
        return registry.bundled_folder(registry.card(cls.family))

    @pytest.fixture(scope="class")
    @classmethod
    def model(cls) -> LanguageModel:
        return load(cls.family, dtype="float32", device="cpu")

    @pytest.fixture(scope="class")
    @classmethod
    def oracle(cls, folder: Path) -> TransformersOracle:
        return TransformersOracle(folder)

    def test_logits_equal_transformers(self, model: LanguageModel, oracle: TransformersOracle) -> None:
        tokens = list(model.tokenizer.encode(" ".join(VERSES)))[:POSITIONS]
        assert len(tokens) == POSITIONS, "vacuous: the verses are too short for this tokenizer"
        wanted = oracle.logits(tokens)
        assert_close(model.forward([tokens])[0], wanted, ORACLE_ABSOLUTE, "one shot")
        session = model.session(POSITIONS)
        session.prefill(tokens[:PREFILLED])
        for position in range(PREFILLED, POSITIONS):
            logits = session.step([[tokens[position]]])[0]
            assert_close(logits, wanted[position], ORACLE_ABSOLUTE, f"token {position}")
        assert session.counters.plans == 1

    def test_greedy_text_equals_transformers(self, model: LanguageModel, oracle: TransformersOracle) -> None:
        prompt = model.tokenizer.encode("In the beginning")
        completion = model.generate(prompt, max_tokens=48)
        assert oracle.greedy(prompt, len(completion.token_ids)) == list(completion.token_ids)
        assert completion.counters.plans == 1

    def test_is_visibly_trained(self, model: LanguageModel) -> None:
        """The verses are likelier than held-out text, and far likelier than their words in the opposite
        order."""

        def loss(text: str) -> float:
            tokens = torch.tensor([model.tokenizer.encode(text)])
            logits = model.forward(tokens)[:, :-1]
            return float(torch.nn.functional.cross_entropy(logits[0], tokens[0, 1:]))

        losses = [loss(verse) for verse in VERSES]
        backwards = [loss(" ".join(verse.split()[::-1])) for verse in VERSES]
        assert sum(losses) / len(losses) < self.held_out_nats
        assert min(b - a for a, b in zip(losses, backwards, strict=True)) > 2

    def test_runs_as_it_is_stored(self, model: LanguageModel) -> None:
        stored = load(self.family, device="cpu")
        assert stored.plan.numerics.weights is torch.bfloat16
        tokens = [model.tokenizer.encode(VERSES[0])]
        exact, rounded = (each.forward(tokens).log_softmax(-1) for each in (model, stored))
        # of distributions, not of logits: a near tie of two experts moves single logits by whole units
        divergence = (exact.exp() * (exact - rounded)).sum(-1)
        assert divergence.max() < 0.02, "in nats; bfloat16 alone costs a few thousandths"
