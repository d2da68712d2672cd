"""A byte-level BPE tokenizer learnt from the training text, in the files that Qwen2 publishes.

Source: tokenizer.json and tokenizer_config.json of Qwen/Qwen2.5-0.5B (pipeline and keys; the
vocabulary is our own).
"""

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

END_OF_TEXT = "<|endoftext|>"

# Words with one leading non-letter, single digits, punctuation runs, line breaks, spaces.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def learn_tokenizer(documents: Iterable[str], *, vocab_size: int) -> Tokenizer:
    """Learn ``vocab_size`` tokens; every byte is one of them and ``<|endoftext|>`` is the last."""
    tokenizer = Tokenizer(BPE(continuing_subword_prefix="", end_of_word_suffix=""))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False),
        ]
    )
    tokenizer.post_processor = processors.ByteLevel(
        add_prefix_space=False, trim_offsets=False, use_regex=False
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=vocab_size - 1,  # the last id is END_OF_TEXT's
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    tokenizer.add_special_tokens([AddedToken(END_OF_TEXT, special=True, normalized=False)])
    return tokenizer


def end_of_text_id(tokenizer: Tokenizer) -> int:
    """The id of ``<|endoftext|>``: between documents, and where a model stops writing."""
    token_id = tokenizer.token_to_id(END_OF_TEXT)
    assert token_id is not None, "learn_tokenizer gives every tokenizer this token"
    return token_id


def write_tokenizer(folder: Path, tokenizer: Tokenizer, *, model_max_length: int) -> None:
    """Write tokenizer.json and tokenizer_config.json into ``folder``."""
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    config = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": {
            str(end_of_text_id(tokenizer)): {
                "content": END_OF_TEXT,
                "lstrip": False,
                "normalized": False,
                "rstrip": False,
                "single_word": False,
                "special": True,
            }
        },
        "additional_special_tokens": [],
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": END_OF_TEXT,
        "errors": "replace",
        "model_max_length": model_max_length,
        "pad_token": END_OF_TEXT,
        "split_special_tokens": False,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": None,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
