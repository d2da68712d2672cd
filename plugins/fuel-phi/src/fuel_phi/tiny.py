"""What the smallest models of the families share."""

from typing import Any

TINY_KEYS: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rope_theta": 29.0,
    "rope_scaling": None,
    "tie_word_embeddings": False,
}
