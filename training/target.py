"""The checkpoint that a run makes: its family, its config, its folder."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizer import END_OF_TEXT, end_of_text_id, write_tokenizer
from tokenizers import Tokenizer

from fuel_core.blocks.decoder import Decoder
from fuel_core.config import read_json_object
from fuel_core.errors import RequestError
from fuel_core.family import Family
from fuel_core.weights.numerics import dtype_of
from fuel_core.weights.save import save_checkpoint

_KEYS = ("vocab_size", "max_position_embeddings", "eos_token_id", "torch_dtype")


@dataclass(frozen=True, kw_only=True)
class Target:
    """What is trained, and where it goes.

    Attributes:
        family: builds the model and names its tensors.
        config: the content of its config.json.
        source: the file that the config comes from.
        folder: the checkpoint folder; made when first written to.

    Raises:
        RequestError: the config leaves out what a model without weights must state.
    """

    family: Family
    config: Mapping[str, Any]
    source: Path
    folder: Path

    def __post_init__(self) -> None:
        if missing := [key for key in _KEYS if key not in self.config]:
            raise RequestError(f"{self.source} must state {', '.join(missing)} to be trained from nothing")

    @classmethod
    def read(cls, family: Family, source: Path, folder: Path) -> "Target":
        return cls(family=family, config=read_json_object(source), source=source, folder=folder)

    @property
    def context_tokens(self) -> int:
        tokens: int = self.config["max_position_embeddings"]
        return tokens

    @property
    def dtype(self) -> torch.dtype:
        """What the weights are stored as."""
        return dtype_of(self.config["torch_dtype"])

    def write_text_files(self, tokenizer: Tokenizer) -> None:
        """Write the tokenizer and what a generation needs to know of it.

        Raises:
            RequestError: the config does not fit the tokenizer.
        """
        end = end_of_text_id(tokenizer)
        stated = self.config["eos_token_id"], self.config["vocab_size"]
        if stated != (end, end + 1):
            raise RequestError(
                f"{self.source} has eos_token_id {stated[0]} and vocab_size {stated[1]}, but the text gave "
                f"{end + 1} tokens, the last of them {END_OF_TEXT}: set both to match"
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        write_tokenizer(self.folder, tokenizer, model_max_length=self.context_tokens)
        generation = {"bos_token_id": end, "do_sample": False, "eos_token_id": end, "pad_token_id": end}
        path = self.folder / "generation_config.json"
        path.write_text(json.dumps(generation, indent=2) + "\n", encoding="utf-8")

    def write_weights(self, decoder: Decoder) -> None:
        """Write config.json and the weights, rounded to :attr:`dtype`; each file replaced whole."""
        save_checkpoint(self.folder, decoder, self.family.weights, self.config, dtype=self.dtype)
