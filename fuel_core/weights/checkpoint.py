"""A checkpoint's weight files: found, checked whole before anything is allocated, read shard by shard.

Which files: ``model.safetensors`` when it exists, as in transformers, else the shards that
``model.safetensors.index.json`` names. What a shard holds beyond the index is listed too, so that a
loader's strict accounting sees it; one name in two shards is an error, whichever the index prefers.
"""

import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from types import MappingProxyType
from typing import Self

import torch

from fuel_core.config.json_file import read_json_object
from fuel_core.errors import CheckpointError, ConfigError, FuelWarning
from fuel_core.foreign_format import ADAPTER_CONFIG, foreign_format
from fuel_core.weights.safetensors_file import SafetensorsFile, TensorInfo

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_PICKLE_SUFFIXES = (".bin", ".pth", ".pt", ".ckpt")


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The tensors of a checkpoint folder, spread over one or more safetensors files.

    Attributes:
        folder: where the files lie.
        shards: the files, in the order in which iteration reads them.
        tensors: name -> dtype, shape and file of every stored tensor.
    """

    folder: Path
    shards: tuple[SafetensorsFile, ...]
    tensors: Mapping[str, TensorInfo]

    @classmethod
    def open(cls, folder: Path | str) -> Self:
        """Find and check the weight files of a folder by their headers; no tensor data is read.

        Raises:
            CheckpointError: no weights, a missing or damaged file, or an index that does not fit
                the files.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise CheckpointError(f"{folder} is no folder; expected one with {SINGLE_FILE} or {INDEX_FILE}")
        if (folder / SINGLE_FILE).is_file():
            _warn_of_unread_shards(folder)
            placement: Mapping[str, Path] = {}
            paths = [folder / SINGLE_FILE]
        elif (folder / INDEX_FILE).is_file():
            placement = read_index(folder)
            paths = sorted(set(placement.values()))
            _refuse_missing_shards(folder, paths)
        else:
            raise _no_weights(folder)
        shards = tuple(SafetensorsFile(path) for path in paths)
        tensors = _merge(folder, shards, placement)
        if not tensors:
            raise CheckpointError(f"{', '.join(str(path) for path in paths)} holds no tensor")
        return cls(folder=folder, shards=shards, tensors=tensors)

    @property
    def total_bytes(self) -> int:
        """Bytes of all tensors, as stored."""
        return sum(info.nbytes for info in self.tensors.values())

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield every ``(name, tensor)``, shard by shard, in the order of their bytes.

        A tensor is a view of the mapped shard: copy what is to be kept. One shard is mapped at a
        time, provided that the caller drops its tensors before the next shard's first is touched.
        """
        for shard in self.shards:
            with shard:
                for name in shard.tensors:
                    yield name, shard.tensor(name)

    def copies(self, names: Iterable[str]) -> dict[str, torch.Tensor]:
        """Some tensors, each copied out of its shard: for small ones that are needed beside others."""
        wanted = set(names)
        copied: dict[str, torch.Tensor] = {}
        for shard in self.shards:
            with shard:
                copied |= {name: shard.tensor(name).clone() for name in shard.tensors if name in wanted}
        return copied


def read_index(folder: Path) -> dict[str, Path]:
    """Return tensor name -> shard path, as the index of a folder says.

    Raises:
        CheckpointError: it is damaged, or names a file outside of the folder.
    """
    path = folder / INDEX_FILE
    try:
        placement = read_json_object(path).get("weight_map")
    except ConfigError as error:
        raise CheckpointError(f"{error}; incomplete or corrupt download") from error
    if not isinstance(placement, dict) or not placement:
        raise CheckpointError(f"{path} has no weight_map from tensor names to files")
    for name, file in placement.items():
        if not isinstance(file, str) or not file:
            raise CheckpointError(f"{path} puts tensor {name!r} in {file!r}, which is no file name")
        # A checkpoint must not make us read outside of its folder. Resolved paths would not do: the
        # hub's cache is made of links that point out of it. Windows' anchors include POSIX's root.
        if PureWindowsPath(file).anchor or ".." in PureWindowsPath(file).parts:
            raise CheckpointError(
                f"{path} puts tensor {name!r} in {file!r}, which lies outside of the folder; "
                "an index may only name files in its own folder"
            )
    return {name: folder / file for name, file in placement.items()}


def _refuse_missing_shards(folder: Path, paths: list[Path]) -> None:
    missing = [str(path.relative_to(folder)) for path in paths if not path.is_file()]
    if missing:
        raise CheckpointError(
            f"{folder} lacks {len(missing)} of the {len(paths)} weight files that {INDEX_FILE} names: "
            f"{', '.join(missing)}; probably an incomplete download: fetch them again"
        )


def _merge(
    folder: Path, shards: tuple[SafetensorsFile, ...], placement: Mapping[str, Path]
) -> Mapping[str, TensorInfo]:
    """Join the shards' tensors, and hold them against the index."""
    tensors: dict[str, TensorInfo] = {}
    for shard in shards:
        for name, info in shard.tensors.items():
            if name in tensors:
                raise CheckpointError(
                    f"tensor {name!r} is in two files, {tensors[name].file.name} and {info.file.name} of "
                    f"{folder}; remove the wrong copy"
                )
            tensors[name] = info
    for name, path in placement.items():
        if name not in tensors:
            raise CheckpointError(
                f"{path} lacks tensor {name!r}, which {INDEX_FILE} puts there; the file belongs to another "
                "checkpoint, or the download is incomplete: fetch both again"
            )
        if tensors[name].file != path:
            raise CheckpointError(
                f"{path} lacks tensor {name!r}, which {INDEX_FILE} puts there; it lies in "
                f"{tensors[name].file.name} instead: fetch index and shards again"
            )
    return MappingProxyType(tensors)


def _warn_of_unread_shards(folder: Path) -> None:
    unread = sorted(path.name for path in folder.glob("model-*-of-*.safetensors"))
    if unread:
        warnings.warn(
            f"{folder} holds both {SINGLE_FILE} and {len(unread)} shards ({unread[0]}, ...); {SINGLE_FILE} "
            "is read and the shards are not",
            FuelWarning,
            stacklevel=3,
        )


def _no_weights(folder: Path) -> CheckpointError:
    looked = f"{folder} holds no weights: looked for {SINGLE_FILE} and {INDEX_FILE}"
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    others = [name for name in names if name.endswith(".safetensors")]
    pickles = [name for name in names if name.endswith(_PICKLE_SUFFIXES)]
    if ADAPTER_CONFIG in names:
        return CheckpointError(f"{looked}{foreign_format(names)}")
    if others:
        return CheckpointError(
            f"{looked}; found {', '.join(others)}: an incomplete download without its index, or "
            "weights under another name"
        )
    if pickles:
        return CheckpointError(
            f"{looked}; found {', '.join(pickles)}, but fuel reads safetensors only and never executes "
            "pickles: convert them with safetensors, or fetch the safetensors revision of this model"
        )
    return CheckpointError(f"{looked}{foreign_format(names) or '; probably an incomplete download'}")
