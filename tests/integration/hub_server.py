"""A small Hugging Face hub on 127.0.0.1: model listings and files, and whatever can go wrong with them.

It answers what huggingface_hub asks when it downloads a model: ``/api/models/REPO[/revision/REV]`` and
``/REPO/resolve/REV/FILE``, with byte ranges. What it refuses carries the status and the ``X-Error-Code``
by which the real hub tells one refusal from another.
"""

import hashlib
import json
import socket
import struct
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote, urlsplit

CHUNK_BYTES = 16 * 1024


@dataclass(frozen=True, kw_only=True)
class Request:
    """One request that the server received, as a test looks at it."""

    method: str
    path: str
    start_byte: int


@dataclass(kw_only=True)
class HubRepository:
    """A model on the hub.

    Attributes:
        commits: commit hash -> path -> content.
        refs: branch or tag -> commit hash.
        token: who may read it; None for everybody.
        gated: anybody sees what it holds, and only ``token`` may read a file.
    """

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    token: str | None = None
    gated: bool = False

    def push(self, files: Mapping[str, bytes] | Path, branch: str = "main") -> str:
        """Add a commit of these files, or of those in a folder, and return its hash."""
        if isinstance(files, Path):
            paths = [path for path in sorted(files.rglob("*")) if path.is_file()]
            files = {path.relative_to(files).as_posix(): path.read_bytes() for path in paths}
        commit = hashlib.sha1(f"{branch} {len(self.commits)}".encode()).hexdigest()
        self.commits[commit] = dict(files)
        self.refs[branch] = commit
        return commit


@dataclass(kw_only=True)
class Fault:
    """What goes wrong with the body of a file, ``times`` times.

    Attributes:
        after_bytes: the connection ends after so many bytes of an answer.
        reset: it ends with a reset rather than in order.
    """

    after_bytes: int
    times: int
    reset: bool = False


class HubServer:
    """The server, running between ``with HubServer() as hub`` and the end of the block.

    Attributes:
        repositories: ``organisation/name`` -> what it holds.
        tokens: those that the hub knows.
        faults: file name -> what goes wrong when it is sent.
        chunk_delay_s: how long it waits after each CHUNK_BYTES of a file.
        down: answer every request with this status.
        requests: what was asked so far.
    """

    def __init__(self) -> None:
        self.repositories: dict[str, HubRepository] = {}
        self.tokens: set[str] = set()
        self.faults: dict[str, Fault] = {}
        self.chunk_delay_s = 0.0
        self.down: HTTPStatus | None = None
        self.requests: list[Request] = []
        handler = type("HubHandler", (_Handler,), {"hub": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def push(self, repo: str, files: Mapping[str, bytes] | Path, branch: str = "main") -> str:
        """Add a commit to a repository, which is made if need be, and return its hash."""
        return self.repositories.setdefault(repo, HubRepository()).push(files, branch)

    def fetched(self) -> list[str]:
        """The files that were sent, in order; one that was cut and continued is listed twice."""
        return [
            request.path.split("/resolve/")[1].split("/", 1)[1]
            for request in self.requests
            if request.method == "GET" and "/resolve/" in request.path
        ]


@dataclass(frozen=True, kw_only=True)
class _Refusal(Exception):
    status: HTTPStatus
    code: str = ""
    message: str = ""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # otherwise a body waits 40 ms for the receipt of its head
    hub: HubServer

    def do_HEAD(self) -> None:
        self._serve()

    def do_GET(self) -> None:
        self._serve()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: a test reads ``requests``."""

    def _serve(self) -> None:
        path, query = urlsplit(self.path)[2:4]
        wanted_range = self.headers.get("Range", "bytes=0-")
        start = int(wanted_range.removeprefix("bytes=").split("-")[0])
        self.hub.requests.append(Request(method=self.command, path=unquote(path), start_byte=start))
        try:
            if self.hub.down is not None:
                raise _Refusal(status=self.hub.down)
            if path.startswith("/api/models/"):
                self._send_listing(
                    path.removeprefix("/api/models/"), with_sizes="blobs=true" in query.lower()
                )
            else:
                self._send_file(path.removeprefix("/"), start)
        except _Refusal as refusal:
            self.send_response(refusal.status)
            self.send_header("X-Error-Code", refusal.code)
            self.send_header("X-Error-Message", refusal.message)
            self.send_header("Content-Length", "0")
            self.end_headers()

    def _send_listing(self, path: str, with_sizes: bool) -> None:
        repo, _, revision = path.partition("/revision/")
        repository = self._repository(repo)
        commit = self._commit(repository, unquote(revision) or "main")
        siblings = [
            {"rfilename": name} | ({"size": len(content), "blobId": _etag(content)} if with_sizes else {})
            for name, content in repository.commits[commit].items()
        ]
        body = json.dumps({"id": repo, "sha": commit, "siblings": siblings}).encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _send_file(self, path: str, start: int) -> None:
        repo, _, place = path.partition("/resolve/")
        revision, _, name = place.partition("/")
        repository = self._repository(repo)
        if repository.gated and self._token() != repository.token:
            status = HTTPStatus.FORBIDDEN if self._token() else HTTPStatus.UNAUTHORIZED
            raise _Refusal(status=status, code="GatedRepo", message=f"Access to model {repo} is restricted.")
        commit = self._commit(repository, unquote(revision))
        content = repository.commits[commit].get(unquote(name))
        if content is None:
            raise _Refusal(status=HTTPStatus.NOT_FOUND, code="EntryNotFound", message="Entry not found")
        self.send_response(HTTPStatus.PARTIAL_CONTENT if start else HTTPStatus.OK)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.send_header("ETag", f'"{_etag(content)}"')
        self.send_header("X-Repo-Commit", commit)
        self.end_headers()
        if self.command == "GET":
            self._send_content(unquote(name), content[start:])

    def _send_content(self, name: str, content: bytes) -> None:
        fault = self.hub.faults.get(name)
        cut = fault is not None and fault.times > 0
        if fault is not None and cut:
            fault.times -= 1
            content = content[: fault.after_bytes]
        try:
            for offset in range(0, len(content), CHUNK_BYTES):
                self.wfile.write(content[offset : offset + CHUNK_BYTES])
                time.sleep(self.hub.chunk_delay_s)
        except (BrokenPipeError, ConnectionResetError):
            cut = True  # whoever asked has gone
        if fault is not None and cut and fault.reset:
            time.sleep(0.05)  # a reset discards what the other side has not read yet
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
        self.close_connection = self.close_connection or cut

    def _repository(self, repo: str) -> HubRepository:
        token = self._token()
        if token is not None and token not in self.hub.tokens:
            message = "Invalid credentials in Authorization header"
            raise _Refusal(status=HTTPStatus.UNAUTHORIZED, message=message)
        repository = self.hub.repositories.get(repo)
        hidden = repository is not None and not repository.gated and repository.token not in (None, token)
        if repository is None or hidden:
            if token is None:
                # A stranger is not told which it is, nor by a code; huggingface_hub supplies it over https
                # alone. So that both forms are met, the code is here for what does not exist.
                code = "" if hidden else "RepoNotFound"
                message = "Invalid username or password."
                raise _Refusal(status=HTTPStatus.UNAUTHORIZED, code=code, message=message)
            raise _Refusal(status=HTTPStatus.NOT_FOUND, code="RepoNotFound", message="Repository not found")
        return repository

    def _commit(self, repository: HubRepository, revision: str) -> str:
        commit = repository.refs.get(revision, revision)
        if commit not in repository.commits:
            message = f"Invalid rev id: {revision}"
            raise _Refusal(status=HTTPStatus.NOT_FOUND, code="RevisionNotFound", message=message)
        return commit

    def _token(self) -> str | None:
        header = self.headers.get("Authorization")
        return None if header is None else header.removeprefix("Bearer ")


def _etag(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
