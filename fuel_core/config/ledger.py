"""What became of each key of a config.json."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any, Final

from fuel_core.config.shown import shown


class Fate(Enum):
    """The one end of a key."""

    USED = "used"
    IRRELEVANT = "irrelevant"
    REFUSED = "refused"


@dataclass(frozen=True)
class LedgerEntry:
    key: str
    value: object
    fate: Fate
    reason: str


class _AnyValue:
    """The type of ANY_VALUE."""

    def __repr__(self) -> str:
        return "ANY_VALUE"


ANY_VALUE: Final = _AnyValue()
"""Marks a key that cannot change a forward pass, whatever its value."""

Neutral = _AnyValue | tuple[Any, ...]
"""ANY_VALUE, or the values at which a key changes nothing: scalars and empty containers."""

IRRELEVANT: Mapping[str, Neutral] = MappingProxyType(
    {
        # what wrote the file, and for whom
        "_name_or_path": ANY_VALUE,
        "architectures": ANY_VALUE,
        "auto_map": ANY_VALUE,  # names code in the checkpoint folder: never executed
        "transformers_version": ANY_VALUE,
        "unsloth_version": ANY_VALUE,
        "unsloth_fixed": ANY_VALUE,
        # training
        "attention_dropout": ANY_VALUE,
        "hidden_dropout": ANY_VALUE,
        "initializer_range": ANY_VALUE,
        "gradient_checkpointing": ANY_VALUE,
        "use_bfloat16": ANY_VALUE,
        # how another library runs it
        "_attn_implementation": ANY_VALUE,
        "_attn_implementation_autoset": ANY_VALUE,
        "attn_implementation": ANY_VALUE,
        "output_attentions": ANY_VALUE,
        "output_hidden_states": ANY_VALUE,
        "return_dict": ANY_VALUE,
        "torchscript": ANY_VALUE,
        "use_cache": ANY_VALUE,
        "use_flash_attn": ANY_VALUE,
        # text: read by the tokenizer or by generation, not by the model
        "bos_token_id": ANY_VALUE,
        "eos_token_id": ANY_VALUE,
        "pad_token_id": ANY_VALUE,
        "decoder_start_token_id": ANY_VALUE,
        "sep_token_id": ANY_VALUE,
        "tokenizer_class": ANY_VALUE,
        # classification heads
        "finetuning_task": ANY_VALUE,
        "id2label": ANY_VALUE,
        "label2id": ANY_VALUE,
        "num_labels": ANY_VALUE,
        "problem_type": ANY_VALUE,
        "task_specific_params": ANY_VALUE,
        # harmless only at these values
        "add_cross_attention": (False,),
        "chunk_size_feed_forward": (0,),
        "is_decoder": (False, True),
        "is_encoder_decoder": (False,),
        "pretraining_tp": (1,),
        "pruned_heads": ({}, None),
        "tie_encoder_decoder": (False,),
    }
)
"""Keys that no family reads, and the values at which they may be passed over."""


@dataclass(frozen=True)
class Ledger:
    """Each key of one config.json with its fate, in the order of the file."""

    entries: tuple[LedgerEntry, ...]

    def __iter__(self) -> Iterator[LedgerEntry]:
        return iter(self.entries)

    def of(self, fate: Fate) -> tuple[LedgerEntry, ...]:
        return tuple(entry for entry in self.entries if entry.fate is fate)

    @classmethod
    def open(
        cls, raw: Mapping[str, Any], used: frozenset[str], irrelevant: Mapping[str, Neutral]
    ) -> "Ledger":
        """Decide the fate of each key of ``raw``."""
        return cls(tuple(_entry(key, value, used, irrelevant) for key, value in raw.items()))


def _entry(key: str, value: object, used: frozenset[str], irrelevant: Mapping[str, Neutral]) -> LedgerEntry:
    if key == "model_type":
        return LedgerEntry(key, value, Fate.USED, "chose the family")
    if key in used:
        return LedgerEntry(key, value, Fate.USED, "read by the family")
    if key not in irrelevant:
        return LedgerEntry(key, value, Fate.REFUSED, "nothing in fuel or this family reads it")
    neutral = irrelevant[key]
    if isinstance(neutral, _AnyValue):
        return LedgerEntry(key, value, Fate.IRRELEVANT, "cannot change a forward pass")
    # type and value: 0 == False would let a number pass for a switch
    if any(type(value) is type(harmless) and value == harmless for harmless in neutral):
        return LedgerEntry(key, value, Fate.IRRELEVANT, "changes nothing at this value")
    allowed = " or ".join(repr(harmless) for harmless in neutral)
    return LedgerEntry(
        key, value, Fate.REFUSED, f"it is {shown(value)}; this family runs only with {allowed}"
    )
