"""The checkpoint that the wheel carries: whole, trained, and the same in transformers."""

from pathlib import Path

import pytest
import torch

import fuel_core
from fuel_core import LanguageModel
from fuel_core.registry import Registry
from fuel_core.testing.checks import ORACLE_ABSOLUTE, assert_close
from fuel_core.testing.oracle import TransformersOracle

PROMPT = "In the beginning God created the heaven and the earth. And the earth was without form, and void;"
"""Long enough for 64 positions with what is generated."""


@pytest.fixture(scope="module")
def folder() -> Path:
    registry = Registry.discover()
    return registry.bundled_folder(registry.card("qwen2"))


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return fuel_core.load("qwen2", dtype="float32")


@pytest.fixture(scope="module")
def oracle(folder: Path) -> TransformersOracle:
    return TransformersOracle(folder)


def test_logits_equal_transformers(model: LanguageModel, oracle: TransformersOracle) -> None:
    tokens = list(model.tokenizer.encode(PROMPT))
    tokens += model.generate(tokens, max_tokens=64).token_ids
    wanted = oracle.logits(tokens[:64])
    assert len(wanted) == 64
    assert_close(model.forward([tokens[:64]])[0], wanted, ORACLE_ABSOLUTE, "one shot")
    session = model.session(64)
    session.prefill(tokens[:16])
    for position in range(16, 64):
        logits = session.step([[tokens[position]]])[0]
        assert_close(logits, wanted[position], ORACLE_ABSOLUTE, f"token {position}")


def test_greedy_text_equals_transformers(model: LanguageModel, oracle: TransformersOracle) -> None:
    prompt = model.tokenizer.encode("In the beginning")
    completion = model.generate(prompt, max_tokens=48)
    assert oracle.greedy(prompt, len(completion.token_ids)) == list(completion.token_ids)
    assert completion.counters.plans == 1


VERSES = (
    "And God said, Let there be light: and there was light.",
    "And it came to pass, when Joshua had made an end of slaying all the inhabitants of Ai in the field, "
    "that all the Israelites returned unto Ai, and smote it with the edge of the sword.",
    "Now these are the generations of the sons of Noah, Shem, Ham, and Japheth: and unto them were sons "
    "born after the flood.",
)


def test_is_visibly_trained(model: LanguageModel) -> None:
    """Verses are likelier than the model card's held-out text (2.79 nats a token; a uniform guess has
    7.6), and far likelier than their words in the opposite order."""

    def loss(text: str) -> float:
        tokens = torch.tensor([model.tokenizer.encode(text)])
        logits = model.forward(tokens)[:, :-1]
        return float(torch.nn.functional.cross_entropy(logits[0], tokens[0, 1:]))

    losses = [loss(verse) for verse in VERSES]
    backwards = [loss(" ".join(verse.split()[::-1])) for verse in VERSES]
    assert sum(losses) / len(losses) < 2.79
    assert min(b - a for a, b in zip(losses, backwards, strict=True)) > 2


def test_runs_as_it_is_stored(model: LanguageModel) -> None:
    stored = fuel_core.load("qwen2")
    assert stored.plan.numerics.weights is torch.bfloat16
    tokens = [model.tokenizer.encode(PROMPT)]
    exact, rounded = model.forward(tokens), stored.forward(tokens)
    # bfloat16 keeps 8 bits: 2**-8 of logits of about 10, a few times over
    assert (exact - rounded).abs().max() < 0.03 * exact.abs().max()
