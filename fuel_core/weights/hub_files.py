"""Which files of a hub repository are fetched: what loading reads, and one set of weights."""

from collections.abc import Collection, Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from fuel_core.errors import CheckpointError
from fuel_core.foreign_format import foreign_format
from fuel_core.weights.checkpoint import INDEX_FILE, SINGLE_FILE, read_index

CONFIG_FILE = "config.json"
_BESIDE_WEIGHTS = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "additional_chat_templates/*.jinja",
)
_WITHOUT_TOKENIZER_JSON = ("tokenizer.model", "vocab.json", "merges.txt", "vocab.txt")
_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pth", ".pt", ".ckpt", ".gguf", ".onnx", ".msgpack", ".h5")


def beside_weights(held: Collection[str]) -> Iterator[str]:
    """Yield the wanted files of a repository that holds ``held``, beside config.json and weights."""
    for pattern in (*_BESIDE_WEIGHTS, *(() if "tokenizer.json" in held else _WITHOUT_TOKENIZER_JSON)):
        yield from sorted(name for name in held if fnmatchcase(name, pattern))


def companions(folder: Path) -> set[str]:
    """The files of a folder beside config.json and weights: of tokenizer, generation and chat templates."""
    patterns = (*_BESIDE_WEIGHTS, *_WITHOUT_TOKENIZER_JSON)
    found = (path for pattern in patterns for path in folder.glob(pattern) if path.is_file())
    return {path.relative_to(folder).as_posix() for path in found}


def weight_files(held: Collection[str], folder: Path) -> list[str]:
    """The files of the weights that ``Checkpoint.open`` would read; ``folder`` has the index, if any."""
    if SINGLE_FILE in held:
        return [SINGLE_FILE]
    shards = {path.relative_to(folder).as_posix() for path in read_index(folder).values()}
    return [INDEX_FILE, *sorted(shards)]


def refuse_without_config(held: Collection[str], asked: str) -> None:
    """Refuse a repository that describes no model."""
    if CONFIG_FILE not in held:
        instead = f"{_weights_seen(held)}; name a repository in the layout of transformers"
        raise CheckpointError(f"{asked} has no {CONFIG_FILE}{foreign_format(held) or instead}")


def refuse_without_weights(held: Collection[str], asked: str) -> None:
    """Refuse a repository without weights that can be read, before anything is fetched from it."""
    if SINGLE_FILE not in held and INDEX_FILE not in held:
        instead = (
            f"{_weights_seen(held)}; fuel reads safetensors in the layout of transformers only: look for a "
            "revision or repository of that kind"
        )
        raise CheckpointError(
            f"{asked} has neither {SINGLE_FILE} nor {INDEX_FILE}{foreign_format(held) or instead}"
        )


def refuse_missing_shards(wanted: Collection[str], held: Collection[str], asked: str) -> None:
    """Refuse a repository whose index names files that it does not hold."""
    missing = sorted(set(wanted) - set(held))
    if missing:
        raise CheckpointError(
            f"{asked} lacks {_some(missing)}, which its {INDEX_FILE} names; its owner must upload them"
        )


def missing_weights(folder: Path) -> str:
    """The weight files that a folder lacks, in words; empty if it lacks none."""
    if (folder / SINGLE_FILE).is_file():
        return ""
    if not (folder / INDEX_FILE).is_file():
        return SINGLE_FILE
    return _some([name for name in weight_files((), folder) if not (folder / name).is_file()])


def _weights_seen(held: Collection[str]) -> str:
    seen = sorted(name for name in held if name.endswith(_WEIGHT_SUFFIXES))
    return f"; it has {_some(seen)}" if seen else ""


def _some(names: list[str]) -> str:
    return ", ".join([*names[:3], *([f"{len(names) - 3} more"] if len(names) > 3 else [])])
