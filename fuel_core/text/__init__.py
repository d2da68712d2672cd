"""Text to tokens and back: the tokenizer and its incremental detokenizer."""
