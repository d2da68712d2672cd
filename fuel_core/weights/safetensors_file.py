"""One safetensors file: checked from its header alone, then memory-mapped.

Source: the format section of https://github.com/huggingface/safetensors (8 bytes of little-endian
header length, a JSON header, then one gapless run of tensor data) and the 100 MB header limit of
its reference implementation, 0.8.0.
"""

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, BinaryIO, Self

import torch
from safetensors import SafetensorError, safe_open

from fuel_core.errors import CheckpointError

MAX_HEADER_BYTES = 100_000_000
_LENGTH_BYTES = 8
_MAX_DIMENSIONS = 64  # torch's own limit; it also bounds the work that a hostile shape can cause
_MAX_ELEMENTS = 2**63 - 1
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_LFS_POINTER_BYTES = 1024  # the Git LFS specification bounds a pointer by this

# F4 and F6 are absent: they pack several elements into a byte, so that shape and bytes of a torch
# tensor would not be those of the header.
_DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "I16": torch.int16,
    "U16": torch.uint16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "F32": torch.float32,
    "F64": torch.float64,
    "I64": torch.int64,
    "U64": torch.uint64,
    "C64": torch.complex64,
}


@dataclass(frozen=True, kw_only=True)
class TensorInfo:
    """What a header says of one tensor."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    file: Path

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor's data, as stored."""
        return math.prod(self.shape) * self.dtype.itemsize


class SafetensorsFile:
    """A safetensors file whose header has been checked against its size; no tensor data is read.

    ``tensors`` holds what the header says, in the order of the data. :meth:`tensor` maps the file
    on first use; leaving the ``with`` block, or :meth:`close`, lets go of the mapping, which then
    lives as long as the last tensor taken from it.

    Raises:
        CheckpointError: the file is missing, incomplete, no safetensors file or contradicts itself.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(_read_tensors(self.path))
        self._mapping: Any = None

    def tensor(self, name: str) -> torch.Tensor:
        """Return one tensor on the CPU, a view of the memory-mapped file: read-only by convention.

        Raises:
            CheckpointError: the file holds no such tensor, or can no longer be mapped.
        """
        if name not in self.tensors:
            raise CheckpointError(f"{self.path} holds no tensor {name!r}")
        try:
            if self._mapping is None:
                self._mapping = safe_open(self.path, framework="pt", device="cpu")
            tensor: torch.Tensor = self._mapping.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{self.path}: tensor {name!r} cannot be mapped: {error}") from error
        return tensor

    def close(self) -> None:
        """Let go of the mapping; a later :meth:`tensor` maps the file anew."""
        self._mapping = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _read_tensors(path: Path) -> dict[str, TensorInfo]:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            header, data_start = _read_header(path, file, size)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    metadata = header.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise CheckpointError(f"{path}: __metadata__ in the header must map strings to strings")
    spans = sorted(
        (_read_entry(path, name, entry) for name, entry in header.items()),
        key=lambda span: span[1:],
    )
    end = 0
    for info, begin, stop in spans:
        if begin != end:
            what = "overlaps the data before it" if begin < end else "leaves a gap before its data"
            raise CheckpointError(
                f"{path}: tensor {info.name!r} {what}: it starts at byte {begin} of the data, "
                f"expected {end}; the file is damaged"
            )
        end = stop
    if data_start + end != size:
        raise _wrong_size(path, f"{data_start + end}", size)
    return {info.name: info for info, _, _ in spans}


def _read_header(path: Path, file: BinaryIO, size: int) -> tuple[dict[str, Any], int]:
    """Return the header's object and the offset at which the data starts.

    Reads no more than the file holds, whatever the length field says.
    """
    start = file.read(_LFS_POINTER_BYTES)
    if start.startswith(_LFS_POINTER):
        raise _git_lfs_pointer(path, start, size)
    if size < _LENGTH_BYTES:
        raise _wrong_size(path, f"at least {_LENGTH_BYTES + len('{}')}", size)
    (length,) = struct.unpack("<Q", start[:_LENGTH_BYTES])
    if length > MAX_HEADER_BYTES:
        raise CheckpointError(
            f"{path} is no safetensors file, or an incomplete or corrupt download: its first 8 bytes give "
            f"a header of {length} bytes (at most {MAX_HEADER_BYTES} are allowed; the file has {size})"
        )
    if _LENGTH_BYTES + length > size:
        raise _wrong_size(path, f"at least {_LENGTH_BYTES + length}", size)
    file.seek(_LENGTH_BYTES)
    text = file.read(length)
    if not text.startswith(b"{"):
        raise CheckpointError(
            f"{path} is no safetensors file: its header starts with {text[:16]!r}, not '{{'"
        )
    repeated: list[str] = []

    def note_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        entries = dict(pairs)
        if len(entries) != len(pairs):
            keys = sorted(key for key, _ in pairs)
            repeated.extend(key for key, following in pairwise(keys) if key == following)
        return entries

    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=note_repeats)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path}: the header is no valid JSON ({error}); incomplete or corrupt download"
        ) from error
    if repeated:
        raise CheckpointError(f"{path}: the header states {repeated[0]!r} more than once")
    return header, _LENGTH_BYTES + length


def _read_entry(path: Path, name: str, entry: Any) -> tuple[TensorInfo, int, int]:
    """Return one tensor's info and the range of its bytes in the data."""
    match entry:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [begin, stop]} if (
            all(type(number) is int and number >= 0 for number in (*shape, begin, stop))
            and len(shape) <= _MAX_DIMENSIONS
            and math.prod(max(size, 1) for size in shape) <= _MAX_ELEMENTS
        ):
            pass
        case _:
            raise CheckpointError(
                f"{path}: the header's entry of {name!r} is {json.dumps(entry)[:200]}; expected a dtype, a "
                "shape and two data_offsets"
            )
    if dtype not in _DTYPES:
        raise CheckpointError(
            f"{path}: tensor {name!r} has dtype {dtype!r}, which fuel cannot read; "
            f"it reads {', '.join(_DTYPES)}"
        )
    info = TensorInfo(name=name, dtype=_DTYPES[dtype], shape=tuple(shape), file=path)
    if stop - begin != info.nbytes:
        raise CheckpointError(
            f"{path}: tensor {name!r} of dtype {dtype} and shape {shape} needs {info.nbytes} bytes, but its "
            f"data_offsets {[begin, stop]} hold {stop - begin}; the file is damaged"
        )
    return info, begin, stop


def _wrong_size(path: Path, expected_bytes: str, size: int) -> CheckpointError:
    return CheckpointError(
        f"{path}: incomplete or corrupt download: expected {expected_bytes} bytes, the file has {size}; "
        "download it again"
    )


def _git_lfs_pointer(path: Path, pointer: bytes, size: int) -> CheckpointError:
    sizes = [line.removeprefix(b"size ") for line in pointer.splitlines() if line.startswith(b"size ")]
    expected = sizes[0].decode("ascii", "replace") if sizes else "more"
    return CheckpointError(
        f"{path}: incomplete or corrupt download: this is a Git LFS pointer, not the weights: expected "
        f"{expected} bytes, the file has {size}; run `git lfs pull` in that folder"
    )
