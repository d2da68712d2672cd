"""``fuel run`` from a hub, as a user sees it: in a process of its own, on a terminal and in a pipe."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from fuel_core.loading import load
from fuel_core.registry import Registry

from .hub_server import CHUNK_BYTES, HubServer

FUEL = (sys.executable, "-W", "error", "-c", "from fuel_core.cli.app import main; main()")
PROMPT = ("Hello", "--max-tokens", "8", "--json")
REPO = "org/tiny"


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with HubServer() as server:
        yield server


@pytest.fixture
def environment(hub: HubServer, tmp_path: Path) -> dict[str, str]:
    """This hub, an empty cache, nobody logged in, and none of huggingface_hub's own settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    ours = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "NO_PROXY": "127.0.0.1"}
    return kept | ours | {"OMP_NUM_THREADS": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "TERM": "xterm"}


def fuel(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run((*FUEL, *arguments), env=environment, capture_output=True, text=True, timeout=120)


def test_a_repository_and_a_preset_run_as_their_folder_does(
    hub: HubServer, environment: dict[str, str], checkpoint: Callable[..., Path]
) -> None:
    folder = checkpoint()
    preset = Registry.discover().card("qwen2").presets["0.5b"]
    hub.push(REPO, checkpoint("mixed-window"))
    hub.push(REPO, folder, branch="v2")
    hub.push(preset, folder)
    expected = load(folder).generate("Hello", max_tokens=8)

    for arguments in ((REPO, "--revision", "v2"), ("qwen2:0.5b",)):
        done = fuel(environment, "run", *arguments, *PROMPT)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["token_ids"] == list(expected.token_ids)
        assert done.stderr == ""  # no bar where there is no terminal

    asked = len(hub.requests)
    again = fuel(environment | {"HF_HUB_OFFLINE": "1"}, "run", "qwen2:0.5b", *PROMPT)
    assert json.loads(again.stdout)["token_ids"] == list(expected.token_ids)
    assert len(hub.requests) == asked


def read_terminal(process: subprocess.Popen[bytes], terminal: int) -> str:
    """All that a process wrote to its terminal."""
    shown = b""
    while True:
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                shown += os.read(terminal, 65536)
            except OSError:  # how Linux says that nobody holds the other side any more
                return shown.decode()
        elif process.poll() is not None:
            return shown.decode()


def test_a_terminal_shows_one_bar_for_all_files_and_one_for_loading(
    hub: HubServer, environment: dict[str, str], checkpoint: Callable[..., Path]
) -> None:
    hub.push(REPO, checkpoint())
    hub.chunk_delay_s = 0.02
    terminal, other_side = pty.openpty()
    termios.tcsetwinsize(terminal, (24, 120))  # without a width tqdm draws nothing
    command = (*FUEL, "run", REPO, *PROMPT)
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=other_side)
    os.close(other_side)
    shown = read_terminal(process, terminal)
    os.close(terminal)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0, shown
    assert len(json.loads(out)["token_ids"]) == 8
    plain = re.sub(r"\x1b\[[?\d;]*[a-zA-Z]", "", shown)
    bars = re.findall(r"(\w[^\r\n]*?) +[━╸╺]", plain)  # what stands before a bar
    assert set(bars) == {"downloading org/tiny", "loading"}
    assert bars.count("downloading org/tiny") > 2
    assert "model.safetensors" not in plain  # huggingface_hub's own bars name the file
    *_, last_frame = shown.split("\x1b[?25h")  # the cursor comes back
    assert last_frame == "\r" + 2 * "\x1b[1A\x1b[2K"  # and both lines are wiped out


def test_ctrl_c_ends_a_download_at_once_and_leaves_nothing_to_trust(
    hub: HubServer, environment: dict[str, str], tmp_path: Path
) -> None:
    weights = bytes(60 * CHUNK_BYTES)
    hub.push(REPO, {"config.json": b"{}", "model.safetensors": weights})
    hub.chunk_delay_s = 1.0  # a minute for the weights
    process = subprocess.Popen(
        (*FUEL, "run", REPO, *PROMPT),
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # a shell's `&` ignores it
    )
    cache = tmp_path / "hf" / "hub"
    while "model.safetensors" not in hub.fetched():
        assert process.poll() is None
        time.sleep(0.01)
    start = time.perf_counter()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert time.perf_counter() - start < 30  # slow machines take their time to end a process
    assert process.returncode == 130
    assert b"Traceback" not in err
    assert list(cache.rglob("*.incomplete")) == []

    offline = fuel(environment | {"HF_HUB_OFFLINE": "1"}, "run", REPO, *PROMPT)
    assert offline.returncode == 1
    assert offline.stdout == ""
    (line,) = offline.stderr.splitlines()
    assert line.startswith(
        "error: the cache holds only a part of org/tiny, without model.safetensors, and HF_"
    )
