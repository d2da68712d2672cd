"""Fixtures that several tests share: a tiny checkpoint folder with a tokenizer."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers

from fuel_core.family import Family
from fuel_core.registry import Registry
from fuel_core.testing import Case

# triton decides at its import, whoever imports it first (torch's compiler does), whether kernels run here
os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Tiny operations wait for each other on several threads, and for nothing on one."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def qwen2() -> Family:
    return Registry.discover().family("qwen2")


def write_tokenizer(folder: Path, vocab_size: int) -> None:
    """A byte-level tokenizer whose last token ends a text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())[: vocab_size - 1]
    vocab = {token: index for index, token in enumerate(alphabet)} | {"<|end|>": vocab_size - 1}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|end|>"])
    backend.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<|end|>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


CheckpointMaker = Callable[..., Path]


@pytest.fixture
def checkpoint(qwen2: Family, tmp_path: Path) -> CheckpointMaker:
    """Make a checkpoint folder of a tiny Qwen2, with config keys changed as asked."""

    def make(tiny: str = "dense", *, dtype: torch.dtype = torch.float32, **changes: Any) -> Path:
        raw = {**qwen2.tiny[tiny], **changes}
        case = Case.build(qwen2, tiny, dtype=dtype, raw=raw)
        folder = tmp_path / f"checkpoint-{len(list(tmp_path.iterdir()))}"
        case.save(folder)
        write_tokenizer(folder, case.plan.vocab_size)
        return folder

    return make
