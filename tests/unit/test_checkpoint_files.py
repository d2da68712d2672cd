"""The weight files of a checkpoint: damaged files are named, nothing is read or allocated before that."""

import json
import struct
import tracemalloc
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from fuel_core.errors import CheckpointError, FuelWarning
from fuel_core.weights.checkpoint import Checkpoint
from fuel_core.weights.safetensors_file import MAX_HEADER_BYTES, SafetensorsFile

MIB = 2**20


def file_bytes(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype: str, shape: list[Any], begin: Any, stop: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, stop]}


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.arange(12.0).reshape(3, 4), "b": torch.ones(5, dtype=torch.bfloat16)}, path)
    return path


def test_reads_what_was_written(whole: Path) -> None:
    with SafetensorsFile(whole) as file:
        assert {name: (info.dtype, info.shape, info.nbytes) for name, info in file.tensors.items()} == {
            "a": (torch.float32, (3, 4), 48),
            "b": (torch.bfloat16, (5,), 10),
        }
        assert file.tensors["a"].file == whole
        assert torch.equal(file.tensor("a"), torch.arange(12.0).reshape(3, 4))
        assert torch.equal(file.tensor("b"), torch.ones(5, dtype=torch.bfloat16))
        with pytest.raises(CheckpointError, match=r"model\.safetensors holds no tensor 'c'"):
            file.tensor("c")


@pytest.mark.parametrize(
    "dtype",
    [
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.uint16, torch.uint32, torch.uint64, torch.complex64),
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
        *(torch.float8_e5m2, torch.float8_e4m3fn, torch.float8_e5m2fnuz, torch.float8_e4m3fnuz),
    ],
    ids=str,
)
def test_every_dtype_is_what_the_library_reads(dtype: torch.dtype, tmp_path: Path) -> None:
    tensor = torch.ones(6).to(dtype)
    save_file({"x": tensor}, tmp_path / "x.safetensors")
    file = SafetensorsFile(tmp_path / "x.safetensors")
    assert file.tensors["x"].dtype == file.tensor("x").dtype == tensor.dtype
    assert file.tensors["x"].nbytes == tensor.nbytes


def test_scalars_empty_tensors_and_files_without_tensors(tmp_path: Path) -> None:
    save_file({"scalar": torch.tensor(2.5), "empty": torch.zeros(0, 7)}, tmp_path / "x.safetensors")
    file = SafetensorsFile(tmp_path / "x.safetensors")
    assert file.tensor("scalar").item() == 2.5
    assert file.tensor("empty").shape == (0, 7)
    (tmp_path / "none.safetensors").write_bytes(file_bytes({"__metadata__": {"format": "pt"}}))
    assert dict(SafetensorsFile(tmp_path / "none.safetensors").tensors) == {}


def test_tensors_come_in_the_order_of_their_data(tmp_path: Path) -> None:
    """Whatever the order of the header: reading a cold file front to back is what disks are good at."""
    header = {"a": entry("U8", [1], 3, 4), "c": entry("U8", [0], 3, 3), "b": entry("U8", [3], 0, 3)}
    (tmp_path / "model.safetensors").write_bytes(file_bytes(header, b"\1\2\3\4"))
    assert list(Checkpoint.open(tmp_path).tensors) == ["b", "c", "a"]
    assert [tensor.tolist() for _, tensor in Checkpoint.open(tmp_path)] == [[1, 2, 3], [], [4]]


@pytest.mark.parametrize("header_bytes", [99_994, 99_999, 100_000, 100_001])
def test_headers_around_100_000_bytes_load(header_bytes: int, tmp_path: Path) -> None:
    """A reader that fetched 100,000 bytes first took a header of just that size for a longer one."""
    header = json.dumps({"x": entry("U8", [3], 0, 3)}).encode().ljust(header_bytes)
    (tmp_path / "x.safetensors").write_bytes(file_bytes(header, b"\1\2\3"))
    assert SafetensorsFile(tmp_path / "x.safetensors").tensor("x").tolist() == [1, 2, 3]


INCOMPLETE = "incomplete or corrupt download"


def test_every_truncation_is_an_incomplete_download(whole: Path, tmp_path: Path) -> None:
    content = whole.read_bytes()
    (header_bytes,) = struct.unpack("<Q", content[:8])
    cut = tmp_path / "cut.safetensors"
    for size in range(len(content)):
        cut.write_bytes(content[:size])
        expected = (
            "at least 10"
            if size < 8
            else f"at least {8 + header_bytes}"
            if size < 8 + header_bytes
            else f"{len(content)}"
        )
        with pytest.raises(CheckpointError) as caught:
            SafetensorsFile(cut)
        assert str(caught.value).startswith(f"{cut}: {INCOMPLETE}: expected {expected} bytes")
        assert f"the file has {size};" in str(caught.value)


@pytest.mark.parametrize("junk", [b"\0", b"junk" * 1000])
def test_trailing_bytes_are_refused(whole: Path, junk: bytes) -> None:
    size = whole.stat().st_size
    whole.write_bytes(whole.read_bytes() + junk)
    with pytest.raises(
        CheckpointError, match=f"{INCOMPLETE}: expected {size} bytes, the file has {size + len(junk)}"
    ):
        SafetensorsFile(whole)


def test_a_git_lfs_pointer_is_recognised(tmp_path: Path) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 988097824\n"
    (tmp_path / "model.safetensors").write_bytes(pointer)
    with pytest.raises(CheckpointError) as caught:
        SafetensorsFile(tmp_path / "model.safetensors")
    message = str(caught.value)
    assert "model.safetensors" in message
    assert f"{INCOMPLETE}: this is a Git LFS pointer" in message
    assert f"expected 988097824 bytes, the file has {len(pointer)}" in message
    assert "git lfs pull" in message


@pytest.mark.parametrize("length", [MAX_HEADER_BYTES + 1, 2**40, 2**64 - 1])
def test_a_huge_length_field_allocates_nothing(length: int, tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", length) + b"{}" * 50)
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match=rf"{INCOMPLETE}.*{length} bytes.*the file has 108"):
            SafetensorsFile(tmp_path / "x.safetensors")
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()


def test_a_length_field_below_the_limit_reads_no_more_than_the_file(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", MAX_HEADER_BYTES) + b"{}")
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match="expected at least 100000008 bytes, the file has 10"):
            SafetensorsFile(tmp_path / "x.safetensors")
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("header", "data_bytes", "complaint"),
    [
        (
            {"x": entry("U8", [4], 0, 4), "y": entry("U8", [4], 2, 6)},
            6,
            "'y' overlaps .* byte 2 .* expected 4",
        ),
        ({"x": entry("U8", [4], 0, 4), "y": entry("U8", [4], 0, 4)}, 4, "'[xy]' overlaps"),
        ({"x": entry("U8", [4], 0, 4), "y": entry("U8", [4], 6, 10)}, 10, "'y' leaves a gap .* byte 6"),
        ({"x": entry("U8", [4], 2, 6)}, 6, "'x' leaves a gap"),
        ({"x": entry("F32", [4], 0, 8)}, 8, r"'x' of dtype F32 and shape \[4\] needs 16 bytes.* hold 8"),
        ({"x": entry("F32", [4], 8, 0)}, 8, r"needs 16 bytes.*\[8, 0\] hold -8"),
        ({"x": entry("F4", [4], 0, 2)}, 2, "dtype 'F4', which fuel cannot read; it reads BOOL, U8"),
        ({"x": entry("", [], 0, 0)}, 0, "dtype '', which fuel cannot read"),
        ({"x": entry("U8", [-4], 0, 4)}, 4, "entry of 'x'"),
        ({"x": entry("U8", [4.0], 0, 4)}, 4, "entry of 'x'"),
        ({"x": entry("U8", [True], 0, 1)}, 1, "entry of 'x'"),
        ({"x": entry("U8", [0, 2**62, 2**62], 0, 0)}, 0, "entry of 'x'"),
        ({"x": entry("U8", [1] * 65, 0, 1)}, 1, "entry of 'x'"),
        ({"x": entry("U8", [1], 0, "1")}, 1, "entry of 'x'"),
        ({"x": {"dtype": "U8", "shape": [1]}}, 1, "entry of 'x'"),
        ({"x": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1, 1]}}, 1, "entry of 'x'"),
        ({"x": 3}, 1, "entry of 'x' is 3"),
        ({"__metadata__": {"format": 1}}, 0, "__metadata__"),
        ({"__metadata__": "pt"}, 0, "__metadata__"),
        (b'{"x": ', 0, "no valid JSON"),
        (b'{"\xff": 1}', 0, "no valid JSON"),
        (b'{"x":' + b"[" * 200_000, 0, "no valid JSON"),
        (b'{"x": ' + b"1" * 5000 + b"}", 0, "no valid JSON"),
        (b"[]", 0, "no safetensors file"),
        (b' {"x": {"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', 1, "no safetensors file"),
        (
            b'{"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},'
            b'"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
            1,
            "states 'x' more than once",
        ),
        (
            b'{"x":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}}',
            1,
            "states 'dtype' more than",
        ),
    ],
)
def test_a_header_that_contradicts_itself_is_refused(
    header: Any, data_bytes: int, complaint: str, tmp_path: Path
) -> None:
    (tmp_path / "x.safetensors").write_bytes(file_bytes(header, bytes(data_bytes)))
    with pytest.raises(CheckpointError, match=rf"(?s)x\.safetensors.*{complaint}"):
        SafetensorsFile(tmp_path / "x.safetensors")


def test_a_missing_file_is_a_checkpoint_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"gone\.safetensors cannot be read: No such file"):
        SafetensorsFile(tmp_path / "gone.safetensors")


def test_a_file_damaged_after_its_check_is_a_checkpoint_error(whole: Path) -> None:
    file = SafetensorsFile(whole)
    whole.write_bytes(whole.read_bytes()[:20])
    with pytest.raises(CheckpointError, match=r"model\.safetensors: tensor 'a' cannot be mapped"):
        file.tensor("a")


def write_shards(folder: Path, shards: dict[str, dict[str, torch.Tensor]], **moved: str) -> None:
    """Write shards and their index; ``moved`` overrides where the index puts a tensor."""
    for file, tensors in shards.items():
        save_file(tensors, folder / file)
    placement = {name: file for file, tensors in shards.items() for name in tensors} | moved
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": 1}, "weight_map": placement})
    )


def three_shards() -> dict[str, dict[str, torch.Tensor]]:
    return {
        f"model-{place + 1:05}-of-00003.safetensors": {
            f"{letter}.{number}": torch.full((4, 8), float(place * 10 + number)) for number in range(3)
        }
        for place, letter in enumerate("zax")
    }


def test_sharded_checkpoint_reads_shard_by_shard(tmp_path: Path) -> None:
    write_shards(tmp_path, three_shards())
    checkpoint = Checkpoint.open(tmp_path)
    assert checkpoint.folder == tmp_path
    assert [shard.path.name for shard in checkpoint.shards] == list(three_shards())
    assert checkpoint.total_bytes == 9 * 4 * 8 * 4
    expected = {name: tensor for tensors in three_shards().values() for name, tensor in tensors.items()}
    assert set(checkpoint.tensors) == set(expected)
    found = [(name, tensor.clone()) for name, tensor in checkpoint]
    assert [name for name, _ in found] == list(checkpoint.tensors) == list(expected)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in found)


def mapped_files(folder: Path) -> set[str]:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {Path(line.split()[-1]).name for line in lines if str(folder) in line}


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
def test_opening_maps_nothing_and_reading_maps_one_shard_at_a_time(tmp_path: Path) -> None:
    """Shards that stayed mapped made loading take twice the model's memory."""
    write_shards(tmp_path, three_shards())
    checkpoint = Checkpoint.open(tmp_path)
    assert mapped_files(tmp_path) == set()
    for name, tensor in checkpoint:
        assert mapped_files(tmp_path) == {checkpoint.tensors[name].file.name}
        assert tensor.untyped_storage().nbytes() == 128  # a view of its own bytes, not of the file
        del tensor
    assert mapped_files(tmp_path) == set()


def test_abandoned_iteration_drops_its_mapping(tmp_path: Path) -> None:
    write_shards(tmp_path, three_shards())
    iterator = iter(Checkpoint.open(tmp_path))
    next(iterator)
    del iterator
    assert mapped_files(tmp_path) == set()


def test_missing_shards_are_all_named(tmp_path: Path) -> None:
    """A server once started with a shard missing, its weights uninitialised."""
    write_shards(tmp_path, three_shards())
    first, second, third = (tmp_path / name for name in three_shards())
    second.unlink()
    with pytest.raises(CheckpointError, match=r"lacks 1 of the 3 .*00002-of-00003\S*; .*incomplete download"):
        Checkpoint.open(tmp_path)
    third.unlink()
    with pytest.raises(CheckpointError) as caught:
        Checkpoint.open(tmp_path)
    assert f"{second.name}, {third.name}" in str(caught.value)
    assert first.name not in str(caught.value)


def test_a_damaged_shard_is_named(tmp_path: Path) -> None:
    write_shards(tmp_path, three_shards())
    second = tmp_path / list(three_shards())[1]
    second.write_bytes(second.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=f"{second.name}: {INCOMPLETE}"):
        Checkpoint.open(tmp_path)


def test_a_tensor_that_its_shard_lacks_is_named_with_the_file(tmp_path: Path) -> None:
    first, second, _ = three_shards()
    write_shards(tmp_path, three_shards(), **{"z.9": second})
    with pytest.raises(CheckpointError, match=f"{second} lacks tensor 'z.9'.*index.json puts there"):
        Checkpoint.open(tmp_path)
    write_shards(tmp_path, three_shards(), **{"z.0": second})
    with pytest.raises(CheckpointError, match=f"{second} lacks tensor 'z.0'.*it lies in {first}"):
        Checkpoint.open(tmp_path)


def test_a_tensor_that_the_index_does_not_list_is_not_dropped(tmp_path: Path) -> None:
    shards = three_shards()
    write_shards(tmp_path, shards)
    first = next(iter(shards))
    save_file({**shards[first], "extra": torch.ones(2)}, tmp_path / first)
    checkpoint = Checkpoint.open(tmp_path)
    assert checkpoint.tensors["extra"].file.name == first
    assert "extra" in dict(checkpoint)


def test_one_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    shards = three_shards()
    first, second, _ = shards
    shards[second]["z.1"] = torch.zeros(4, 8)
    write_shards(tmp_path, shards)
    with pytest.raises(CheckpointError, match=f"'z.1' is in two files, {first} and {second}"):
        Checkpoint.open(tmp_path)


@pytest.mark.parametrize(
    "file",
    [
        "../model.safetensors",
        "sub/../../x.safetensors",
        "/etc/x.safetensors",
        "C:\\x.safetensors",
        "\\\\h\\s\\x",
        "..\\x",
    ],
)
def test_an_index_cannot_point_out_of_its_folder(file: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    save_file({"z.0": torch.ones(1)}, tmp_path / "model.safetensors")
    write_shards(folder, three_shards(), **{"z.0": file})
    with pytest.raises(CheckpointError, match=r"'z\.0' in .*outside of the folder"):
        Checkpoint.open(folder)


def test_shards_may_be_links_out_of_the_folder(tmp_path: Path) -> None:
    """The hub's cache holds links into its blob store: a check of resolved paths refused them."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    write_shards(snapshot, three_shards())
    for name in three_shards():
        (snapshot / name).rename(blobs / name)
        (snapshot / name).symlink_to(Path("..") / "blobs" / name)
    assert len(dict(Checkpoint.open(snapshot))) == 9


def test_one_file_under_two_spellings_is_one_shard(tmp_path: Path) -> None:
    first, *_ = three_shards()
    write_shards(tmp_path, three_shards(), **{"z.0": f"./{first}"})
    assert len(Checkpoint.open(tmp_path).shards) == 3


@pytest.mark.parametrize(
    ("index", "complaint"),
    [
        ('{"weight_map": {"a": "x.safetens', f"no valid JSON.*{INCOMPLETE}"),
        ("[]", "an object is expected"),
        ("{}", "has no weight_map"),
        ('{"weight_map": {}}', "has no weight_map"),
        ('{"weight_map": ["a"]}', "has no weight_map"),
        ('{"weight_map": {"a": 1}}', "'a' in 1, which is no file name"),
        ('{"weight_map": {"a": ""}}', "'a' in '', which is no file name"),
        ('{"weight_map": {"a": "x", "a": "y"}}', "states a more than once"),
        ('{"weight_map": {"a": "x\\u0000"}}', "incomplete download"),
    ],
)
def test_a_broken_index_is_refused(index: str, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(CheckpointError, match=complaint):
        Checkpoint.open(tmp_path)


def test_the_single_file_wins_and_unread_shards_are_announced(whole: Path, tmp_path: Path) -> None:
    write_shards(tmp_path, three_shards())
    with pytest.warns(FuelWarning, match=r"3 shards .* the shards are not"):
        checkpoint = Checkpoint.open(tmp_path)
    assert [shard.path for shard in checkpoint.shards] == [whole]
    assert set(checkpoint.tensors) == {"a", "b"}


def test_an_index_beside_the_single_file_is_no_reason_to_warn(whole: Path, tmp_path: Path) -> None:
    """Some converters write an index for a single file too."""
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model.safetensors"}}')
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert set(Checkpoint.open(tmp_path).tensors) == {"a", "b"}


def touch(*names: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        for name in names:
            (folder / name).write_bytes(b"")

    return write


@pytest.mark.parametrize(
    ("prepare", "complaint"),
    [
        (touch(), "looked for model.safetensors and model.safetensors.index.json; probably an incomplete"),
        (touch("config.json"), "probably an incomplete download"),
        (
            touch("pytorch_model.bin", "consolidated.00.pth"),
            "found consolidated.00.pth, pytorch_model.bin, but fuel reads safetensors only and never",
        ),
        (touch("model-00001-of-00002.safetensors", "a.bin"), "incomplete download without its index"),
        (
            touch("config.json", "model-q4.gguf"),
            "it has model-q4.gguf; fuel reads no GGUF: take",
        ),
        (
            touch("config.json", "adapter_config.json", "adapter_model.safetensors"),
            r"it has adapter_config.json, so it is an adapter .* of another model: merge",
        ),
        (Path.rmdir, "is no folder"),
    ],
)
def test_a_folder_without_weights_says_what_was_looked_for(
    prepare: Callable[[Path], None], complaint: str, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    prepare(folder)
    with pytest.raises(CheckpointError, match=complaint):
        Checkpoint.open(folder)
