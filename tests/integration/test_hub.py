"""Checkpoints from a hub: what is fetched, what is kept, and what is said when it does not come."""

import errno
import json
import random
import shutil
import socket
import time
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants

from fuel_core.errors import CheckpointError, FuelWarning, RequestError
from fuel_core.loading import load
from fuel_core.weights import hub_repository
from fuel_core.weights.hub import download, download_config
from fuel_core.weights.hub_progress import unseen_bar

from .hub_server import Fault, HubServer

REPO = "org/model"
FILES = {"config.json": b"{}", "tokenizer.json": b'{"a": 1}', "model.safetensors": b"weights" * 1000}
SHARDED = {
    "config.json": b"{}",
    "model.safetensors.index.json": json.dumps(
        {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    ).encode(),
    "model-00001-of-00002.safetensors": b"first" * 1000,
    "model-00002-of-00002.safetensors": b"second" * 1000,
}


@pytest.fixture(autouse=True, scope="module")
def hub_may_be_asked() -> Iterator[None]:
    """huggingface_hub reads the environment once, at import, and who runs the tests may forbid the hub."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constants, "HF_HUB_OFFLINE", False)
        patch.setattr(hub_repository, "_PAUSE_S", 0.0)
        patch.setenv("NO_PROXY", "127.0.0.1")
        huggingface_hub.close_session()
        yield
        huggingface_hub.close_session()


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with HubServer() as server:
        yield server


@pytest.fixture
def options(hub: HubServer, tmp_path: Path) -> dict[str, Any]:
    """Nobody is logged in, and the cache is empty."""
    return {"endpoint": hub.url, "cache_dir": tmp_path / "cache", "token": False}


def closed_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def half_files(cache: Path) -> list[Path]:
    return list(cache.rglob("*.incomplete"))


class Progress:
    """Remembers what it was told; ``fail_at`` bytes it raises ``error``."""

    def __init__(self, fail_at: int = -1, error: Exception | None = None) -> None:
        self.calls: list[tuple[str, int, int]] = []
        self.fail_at = fail_at
        self.error = error

    def __call__(self, task: str, done_bytes: int, total_bytes: int) -> None:
        self.calls.append((task, done_bytes, total_bytes))
        if self.error is not None and done_bytes > self.fail_at:
            raise self.error


WANTED = {
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "additional_chat_templates/tool_use.jinja",
    "model.safetensors",
}
UNWANTED = {
    ".gitattributes",
    "README.md",
    "adapter_config.json",
    "consolidated.safetensors",
    "flax_model.msgpack",
    "model-00001-of-00001.safetensors",
    "model-q4.gguf",
    "model.fp16.safetensors",
    "model.safetensors.index.json",
    "modeling_model.py",
    "merges.txt",
    "onnx/model.onnx",
    "original/consolidated.00.pth",
    "original/model.safetensors",
    "original/params.json",
    "original/tokenizer.json",
    "preprocessor_config.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "tf_model.h5",
    "tokenizer.model",
    "training_args.bin",
    "vocab.json",
}


def test_only_what_loading_reads_is_fetched(hub: HubServer, options: dict[str, Any]) -> None:
    hub.push(REPO, {name: name.encode() for name in WANTED | UNWANTED})
    assert contents(download(REPO, **options)) == {name: name.encode() for name in WANTED}
    assert sorted(hub.fetched()) == sorted(WANTED)


def test_weights_come_last_and_by_the_index(hub: HubServer, options: dict[str, Any]) -> None:
    others = {"model-00003-of-00003.safetensors": b"of another upload", "tokenizer.json": b"t"}
    hub.push(REPO, SHARDED | others)
    folder = download(REPO, **options)
    assert contents(folder) == SHARDED | {"tokenizer.json": b"t"}
    assert hub.fetched()[-2:] == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]


def test_the_old_tokenizer_files_come_where_there_is_no_other(
    hub: HubServer, options: dict[str, Any]
) -> None:
    old = {"tokenizer.model": b"m", "vocab.json": b"v", "merges.txt": b"t"}
    hub.push(REPO, {"config.json": b"{}", "model.safetensors": b"w"} | old)
    assert contents(download(REPO, **options)).keys() >= old.keys()


def test_nothing_is_fetched_twice(hub: HubServer, options: dict[str, Any]) -> None:
    hub.push(REPO, FILES)
    folder = download(REPO, **options)
    hub.requests.clear()
    progress = Progress()
    assert download(REPO, progress=progress, **options) == folder
    assert hub.fetched() == []
    assert progress.calls == []


def test_a_new_commit_fetches_what_changed(hub: HubServer, options: dict[str, Any]) -> None:
    hub.push(REPO, FILES)
    before = download(REPO, **options)
    hub.requests.clear()
    hub.push(REPO, FILES | {"tokenizer.json": b"new"})
    after = download(REPO, **options)
    assert hub.fetched() == ["tokenizer.json"]
    assert contents(before) == FILES
    assert contents(after) == FILES | {"tokenizer.json": b"new"}


def test_a_revision_is_a_branch_a_tag_or_a_commit(hub: HubServer, options: dict[str, Any]) -> None:
    first = hub.push(REPO, FILES)
    hub.push(REPO, FILES | {"tokenizer.json": b"pr"}, branch="refs/pr/1")
    hub.push(REPO, FILES | {"tokenizer.json": b"new"})
    for offline in (False, True):
        read = {
            revision: (
                download(REPO, revision, local_files_only=offline, **options) / "tokenizer.json"
            ).read_bytes()
            for revision in (None, first, "refs/pr/1")
        }
        assert read == {None: b"new", first: FILES["tokenizer.json"], "refs/pr/1": b"pr"}


def test_the_config_comes_alone(hub: HubServer, options: dict[str, Any]) -> None:
    hub.push(REPO, FILES)
    folder = download_config(REPO, **options)
    assert contents(folder) == {"config.json": b"{}"}
    assert download_config(REPO, local_files_only=True, **options) == folder


# -- connections that break -----------------------------------------------------------------------

BIG = random.Random(0).randbytes(12 * 2**20)  # huggingface_hub keeps a broken file in steps of 10 MiB


def test_a_cut_connection_goes_on_where_it_was(hub: HubServer, options: dict[str, Any]) -> None:
    hub.push(REPO, FILES | {"model.safetensors": BIG})
    hub.faults["model.safetensors"] = Fault(after_bytes=11 * 2**20, times=1)
    progress = Progress()
    folder = download(REPO, progress=progress, **options)
    assert (folder / "model.safetensors").read_bytes() == BIG
    starts = [request.start_byte for request in hub.requests if request.path.endswith("model.safetensors")]
    assert starts == [0, 0, 10 * 2**20]  # HEAD, the first part, the rest
    done = [done for _, done, _ in progress.calls]
    assert done == sorted(done)


def test_a_reset_connection_is_tried_again(hub: HubServer, options: dict[str, Any]) -> None:
    """huggingface_hub 2.4 gives up at the first reset, and drops what it has."""
    hub.push(REPO, FILES | {"model.safetensors": BIG})
    hub.faults["model.safetensors"] = Fault(after_bytes=11 * 2**20, times=2, reset=True)
    progress = Progress()
    folder = download(REPO, progress=progress, **options)
    assert (folder / "model.safetensors").read_bytes() == BIG
    done = [done for _, done, _ in progress.calls]
    assert done == sorted(done)


def test_a_connection_that_keeps_breaking_leaves_whole_files_alone(
    hub: HubServer, options: dict[str, Any]
) -> None:
    hub.push(REPO, SHARDED)
    second = "model-00002-of-00002.safetensors"
    hub.faults[second] = Fault(after_bytes=100, times=99, reset=True)
    with pytest.raises(CheckpointError, match=r"org/model broke off .*load it again"):
        download(REPO, **options)
    assert half_files(options["cache_dir"]) == []
    with pytest.raises(
        CheckpointError, match=f"only a part of org/model, without {second}, and local_files_only"
    ):
        download(REPO, local_files_only=True, **options)
    hub.faults.clear()
    hub.requests.clear()
    assert contents(download(REPO, **options)) == SHARDED
    assert hub.fetched() == [second]


def test_progress_counts_the_bytes_that_are_to_come(hub: HubServer, options: dict[str, Any]) -> None:
    hub.push(REPO, SHARDED | {"tokenizer.json": BIG})
    progress = Progress()
    download(REPO, progress=progress, **options)
    tasks, done, totals = zip(*progress.calls, strict=True)
    to_come = len(BIG) + sum(len(content) for name, content in SHARDED.items() if "-of-" in name)
    assert set(tasks) == {"downloading org/model"}
    assert set(totals) == {to_come}
    assert done[0] == 0
    assert done[-1] == to_come
    assert list(done) == sorted(done)
    assert 10 * 2**20 in done  # within a file


def test_of_two_bars_for_one_file_the_one_ahead_counts(capsys: pytest.CaptureFixture[str]) -> None:
    """Over Xet, bytes received and bytes written have a bar each; their sum reached the end half way."""
    told: list[int] = []
    bar_class = unseen_bar(told.append)
    with bar_class(total=100, desc="received") as received, bar_class(total=100, initial=10) as written:
        for bar, step in ((written, 5), (received, 30), (written, 5), (received, 70), (written, -20)):
            bar.update(step)
    assert told == [15, 30, 100]
    assert capsys.readouterr().err == ""


# -- the cache alone ------------------------------------------------------------------------------


def test_the_cache_alone_is_enough(
    hub: HubServer, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.push(REPO, SHARDED)
    folder = download(REPO, **options)
    hub.requests.clear()
    assert download(REPO, local_files_only=True, **options) == folder
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert download(REPO, **options) == folder
    assert hub.requests == []


@pytest.mark.parametrize("fetch", [download, download_config])
def test_what_is_neither_cached_nor_asked_for(
    fetch: Any, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        CheckpointError, match=r"org/model is not in the cache .*cache, and local_files_only is set"
    ):
        fetch(REPO, local_files_only=True, **options)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(CheckpointError, match=r"org/model is not in the cache .* HF_HUB_OFFLINE is set"):
        fetch(REPO, **options)


@pytest.mark.parametrize("fetch", [download, download_config])
def test_a_hub_out_of_reach_is_told_at_once(fetch: Any, options: dict[str, Any]) -> None:
    """A request for a file that finds nobody is repeated for 23 seconds by huggingface_hub."""
    start = time.perf_counter()
    with pytest.raises(
        CheckpointError, match=r"not in the cache .* cannot be reached \(ConnectError: .*refused"
    ):
        fetch(REPO, **options | {"endpoint": closed_port()})
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize("status", [None, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS])
def test_a_hub_out_of_reach_leaves_the_cache_with_a_warning(
    hub: HubServer, options: dict[str, Any], status: HTTPStatus | None
) -> None:
    commit = hub.push(REPO, FILES)
    folder = download(REPO, **options)
    hub.down = status
    if status is None:
        options["endpoint"] = closed_port()
    with pytest.warns(
        FuelWarning, match=f"cannot be reached .*org/model is read from the cache.*{commit[:12]}"
    ):
        assert download(REPO, **options) == folder


def test_a_portal_that_answers_for_the_hub_is_no_hub(hub: HubServer, options: dict[str, Any]) -> None:
    """Hotel networks answer every address with a page of their own, and status 200."""
    hub.down = HTTPStatus.OK
    with pytest.raises(CheckpointError, match=r"not in the cache .* cannot be reached"):
        download(REPO, **options)


def test_an_older_copy_does_not_stand_in_for_a_refused_one(hub: HubServer, options: dict[str, Any]) -> None:
    """huggingface_hub answers a refused file with the copy of whatever commit it has, and says nothing."""
    hub.push(REPO, FILES)
    download(REPO, **options)
    hub.push(REPO, FILES | {"config.json": b'{"new": 1}'})
    hub.repositories[REPO].gated = True
    hub.repositories[REPO].token = "member"
    with pytest.raises(CheckpointError, match="gated"):
        download(REPO, **options)


def test_a_refusal_tells_of_the_copy_in_the_cache(hub: HubServer, options: dict[str, Any]) -> None:
    hub.push(REPO, FILES)
    folder = download(REPO, **options)
    del hub.repositories[REPO]
    with pytest.raises(CheckpointError, match=r"the hub has no org/model, .*HF_HUB_OFFLINE=1 loads the copy"):
        download(REPO, **options)
    assert download(REPO, local_files_only=True, **options) == folder


# -- who may read ---------------------------------------------------------------------------------


@pytest.mark.parametrize("fetch", [download, download_config])
@pytest.mark.parametrize(
    ("repo", "token", "message"),
    [
        ("org/absent", False, "no org/absent, or it is private: .*hf auth login.*HF_TOKEN"),
        ("org/absent", "stranger", "no org/absent, or it is private and this login may not read it"),
        ("org/private", False, "no org/private, or it is private: .*hf auth login"),
        ("org/private", "stranger", "no org/private, or it is private and this login may not read it"),
        ("org/gated", False, "org/gated is gated: ask for access at http://127.*/org/gated, then .*hf auth"),
        ("org/gated", "stranger", "org/gated is gated, and this login has no access: ask for it at http"),
        (
            "org/open",
            "revoked",
            "the hub refuses the token: it is wrong, revoked or expired; .*hf auth login",
        ),
    ],
)
def test_a_closed_door_says_how_it_opens(
    hub: HubServer, options: dict[str, Any], fetch: Any, repo: str, token: str | bool, message: str
) -> None:
    hub.tokens = {"member", "stranger"}
    for name in ("org/open", "org/private", "org/gated"):
        hub.push(name, FILES)
    hub.repositories["org/private"].token = "member"
    hub.repositories["org/gated"].token = "member"
    hub.repositories["org/gated"].gated = True
    with pytest.raises(CheckpointError, match=message):
        fetch(repo, **options | {"token": token})
    assert contents(fetch("org/private", **options | {"token": "member"}))["config.json"] == b"{}"
    assert contents(fetch("org/gated", **options | {"token": "member"}))["config.json"] == b"{}"


def test_a_login_that_is_asked_for_must_be_there(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with pytest.raises(CheckpointError, match="token=True asks for a login, and there is none"):
        download(REPO, **options | {"token": True})


@pytest.mark.parametrize("token", ["", "hf_secret\n", "hf secret", "hf_sécret"])
def test_a_malformed_token_is_not_repeated(options: dict[str, Any], token: str) -> None:
    """The HTTP library refuses such a header with a message that holds it, and messages end up in logs."""
    with pytest.raises(RequestError, match="token") as caught:
        download(REPO, **options | {"token": token})
    assert "cret" not in str(caught.value)


def test_any_other_refusal_is_shown_as_it_is(hub: HubServer, options: dict[str, Any]) -> None:
    hub.down = HTTPStatus.FORBIDDEN
    with pytest.raises(CheckpointError, match="the hub refuses org/model with HTTP 403"):
        download(REPO, **options)


# -- what a repository lacks ----------------------------------------------------------------------


def test_a_missing_revision(hub: HubServer, options: dict[str, Any]) -> None:
    hub.push(REPO, FILES)
    with pytest.raises(
        CheckpointError, match=r"no org/model at revision 'v9'; http://127\S+/org/model/tree/main"
    ):
        download(REPO, "v9", **options)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"model.safetensors": b""},
            "org/model has no config.json; it has model.safetensors; .*transformers",
        ),
        ({"config.json": b"{}"}, "neither model.safetensors nor model.safetensors.index.json; fuel reads"),
        (
            {"config.json": b"{}", "pytorch_model.bin": b""},
            "neither .*; it has pytorch_model.bin; fuel reads",
        ),
        ({f"{i}.gguf": b"" for i in range(5)}, r"it has 0.gguf, 1.gguf, 2.gguf, 2 more; fuel reads no GGUF"),
        (
            {"adapter_config.json": b"{}", "adapter_model.safetensors": b""},
            r"it has adapter_config.json, so it is an adapter .*: merge",
        ),
        (
            {name: content for name, content in SHARDED.items() if "00002-of" not in name},
            "lacks model-00002-of-00002.safetensors, which its model.safetensors.index.json names",
        ),
        (FILES | SHARDED | {"model.safetensors.index.json": b"[]"}, None),
        (SHARDED | {"model.safetensors.index.json": b"[]"}, "an object is expected; incomplete or corrupt"),
    ],
)
def test_a_repository_of_no_use_is_refused_before_its_weights_are_fetched(
    hub: HubServer, options: dict[str, Any], files: dict[str, bytes], message: str | None
) -> None:
    hub.push(REPO, files)
    if message is None:  # an index that is not read does no harm
        download(REPO, **options)
        return
    with pytest.raises(CheckpointError, match=message):
        download(REPO, **options)
    assert [name for name in hub.fetched() if name.endswith(".safetensors")] == []


def test_a_repository_without_a_config_has_none_to_fetch(hub: HubServer, options: dict[str, Any]) -> None:
    hub.push(REPO, {"model-q4.gguf": b""})
    with pytest.raises(CheckpointError, match=r"has no config.json; it has model-q4.gguf"):
        download_config(REPO, **options)


@pytest.mark.parametrize("repo", ["org/a--b", "org/" + "x" * 100])
def test_a_name_that_the_hub_cannot_hold(options: dict[str, Any], repo: str) -> None:
    with pytest.raises(RequestError, match="nothing that the hub could hold"):
        download(repo, **options)


# -- the disk -------------------------------------------------------------------------------------


def test_what_does_not_fit_is_refused_before_it_is_fetched(
    hub: HubServer, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.push(REPO, FILES)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(
        CheckpointError, match=r"needs 0 MB more on the disk of \S+cache, which has 0 MB free"
    ):
        download(REPO, **options)
    assert hub.fetched() == ["config.json"]


def test_what_another_commit_has_in_the_cache_needs_no_room(
    hub: HubServer, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new README made a full disk refuse weights that were already there."""
    hub.push(REPO, FILES)
    download(REPO, **options)
    hub.push(REPO, FILES | {"README.md": b"new"})
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    assert contents(download(REPO, **options)) == FILES


def test_a_disk_that_fills_up_keeps_whole_files_alone(hub: HubServer, options: dict[str, Any]) -> None:
    hub.push(REPO, FILES | {"model.safetensors": BIG})
    full = Progress(fail_at=10**6, error=OSError(errno.ENOSPC, "No space left on device"))
    with pytest.raises(CheckpointError, match=r"the disk filled up while org/model .*cache_dir, HF_HOME"):
        download(REPO, progress=full, **options)
    assert half_files(options["cache_dir"]) == []
    with pytest.raises(CheckpointError, match=r"only a part of org/model, without model.safetensors"):
        download(REPO, local_files_only=True, **options)
    hub.requests.clear()
    download(REPO, **options)
    assert hub.fetched() == ["model.safetensors"]


def test_a_cache_that_cannot_be_written(hub: HubServer, options: dict[str, Any], tmp_path: Path) -> None:
    hub.push(REPO, FILES)
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(CheckpointError, match=r"cannot be kept in the cache: .*: \S+cache"):
        download(REPO, **options)


# -- who asks -------------------------------------------------------------------------------------


def test_only_the_hub_has_revisions(checkpoint: Any) -> None:
    with pytest.raises(RequestError, match="is not on the hub, so it has no revision 'v2'"):
        load(checkpoint(), revision="v2")
