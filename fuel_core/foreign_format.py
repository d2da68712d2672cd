"""What files say that they are, where fuel does not read them, and what to do instead."""

from collections.abc import Collection

ADAPTER_CONFIG = "adapter_config.json"
NO_GGUF = "fuel reads no GGUF: take the same model in safetensors, in the layout of transformers"


def foreign_format(names: Collection[str]) -> str:
    """What a folder or repository with these files is instead of a checkpoint, as the rest of a sentence that
    has named it, ``"; it ..."``; empty if nothing tells."""
    if ADAPTER_CONFIG in names:
        return (
            f"; it has {ADAPTER_CONFIG}, so it is an adapter (LoRA) of another model: merge the two with "
            "merge_and_unload() of peft, save that with its tokenizer, and load the result"
        )
    gguf = sorted(name for name in names if name.endswith(".gguf"))
    if gguf:
        shown = [*gguf[:3], *([f"{len(gguf) - 3} more"] if len(gguf) > 3 else [])]
        return f"; it has {', '.join(shown)}; {NO_GGUF}"
    return ""
