"""How the command line behaves before any model: help, errors, interruptions, pipes, colours, speed."""

import json
import os
import pty
import resource
import signal
import statistics
import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

import fuel_core
from fuel_core.cli.app import FrontDoor, app, fuel
from fuel_core.cli.terminal import print_table
from fuel_core.errors import FuelWarning, PluginError

ROOT = str(Path(fuel_core.__file__).parents[1])
ENVIRONMENT = {
    **{key: value for key, value in os.environ.items() if not key.startswith(("FUEL_", "NO_COLOR"))},
    "PYTHONPATH": os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")])),
    "TERM": "xterm-256color",
    "COLUMNS": "200",
}
RUN_MAIN = "from fuel_core.cli.app import main; main()"


def fuel_process(*args: str, code: str = RUN_MAIN, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *args]
    return subprocess.run(command, env={**ENVIRONMENT, **env}, capture_output=True, text=True, timeout=60)


rehearsal = typer.Typer(cls=FrontDoor, pretty_exceptions_enable=False)
rehearsal.callback()(fuel)


@rehearsal.command()
def fail(prompt: str = "") -> None:
    raise PluginError(f"no such thing: [bold]{prompt}")


@rehearsal.command()
def warn() -> None:
    warnings.warn("reads differently", FuelWarning, stacklevel=1)


@rehearsal.command()
def deprecated() -> None:
    warnings.warn("for developers", DeprecationWarning, stacklevel=1)


@rehearsal.command()
def echo(words: list[str]) -> None:
    typer.echo(" ".join(words))


def rehearse(*args: str) -> Result:
    return CliRunner().invoke(rehearsal, args)


def test_an_error_that_fuel_names_is_one_line_on_stderr_and_status_1() -> None:
    result = rehearse("fail")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "error: no such thing: [bold]\n"


@pytest.mark.parametrize(
    "args", [("--debug", "fail"), ("fail", "--debug"), ("fail", "--debug", "--prompt", "x")]
)
def test_debug_shows_the_error_itself_wherever_it_stands(args: tuple[str, ...]) -> None:
    assert isinstance(rehearse(*args).exception, PluginError)


def test_debug_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUEL_DEBUG", "1")
    assert isinstance(rehearse("fail").exception, PluginError)


def test_debug_after_two_dashes_is_a_word() -> None:
    assert rehearse("echo", "--", "a", "--debug").stdout == "a --debug\n"


def test_a_traceback_is_shown_with_debug_alone() -> None:
    code = (
        "import fuel_core.cli.app as a, fuel_core.errors as e\n"
        "@a.app.command()\n"
        "def fail(): raise e.ConfigError('odd key')\n"
        "a.main()"
    )
    plain, debug = fuel_process("fail", code=code), fuel_process("fail", "--debug", code=code)
    assert (plain.returncode, plain.stdout, plain.stderr) == (1, "", "error: odd key\n")
    assert debug.returncode == 1
    assert "Traceback (most recent call last):\n" in debug.stderr
    assert "odd key" in debug.stderr


def test_a_fuel_warning_names_no_line_of_code() -> None:
    with warnings.catch_warnings(record=True) as others:
        warnings.simplefilter("always")
        assert rehearse("warn").stderr == "warning: reads differently\n"
        assert rehearse("deprecated").stderr == ""
    assert [str(other.message) for other in others] == ["for developers"]


@pytest.mark.parametrize("args", [("nonsense",), ("plugins", "--nonsense"), ("families", "extra"), ()])
def test_wrong_usage_is_status_2(args: tuple[str, ...]) -> None:
    result = fuel_process(*args)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert "Usage: fuel" in result.stdout + result.stderr


def test_a_mistyped_command_is_answered_with_the_nearest() -> None:
    assert "'plugins'" in fuel_process("plugin").stderr


@pytest.mark.parametrize("flag", ["-h", "--help"])
@pytest.mark.parametrize("command", [(), ("families",), ("plugins",)])
def test_help_is_to_be_had_everywhere(command: tuple[str, ...], flag: str) -> None:
    result = CliRunner().invoke(app, [*command, flag])
    assert result.exit_code == 0
    assert "Usage:" in result.stdout


def test_help_names_every_command_with_a_whole_sentence_and_gives_examples() -> None:
    text = fuel_process("--help", COLUMNS="80").stdout
    for command in app.registered_commands:
        assert command.callback is not None
        assert command.callback.__doc__ is not None
        assert command.callback.__doc__.splitlines()[0] in text
    assert "Examples:" in text


def test_version() -> None:
    assert CliRunner().invoke(app, ["--version"]).stdout == f"fuel {fuel_core.__version__}\n"


def test_shell_completion_knows_the_commands() -> None:
    result = fuel_process(_FUEL_COMPLETE="complete_bash", COMP_WORDS="fuel pl", COMP_CWORD="1")
    assert sorted(result.stdout.split()) == ["plan", "plugins"]


def test_an_interruption_is_status_130_and_silent() -> None:
    code = (
        "import time, fuel_core.cli.app as a\n"
        "@a.app.command()\n"
        "def wait(): print('waiting', flush=True); time.sleep(60)\n"
        "a.main()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, "wait"],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # a shell's `&` ignores it
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"waiting\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=30) == (b"", b"")
    assert process.returncode == 130


@pytest.mark.parametrize("command", ["plugins", "families", "--help"])
def test_a_reader_that_leaves_is_no_traceback(command: str) -> None:
    """``fuel plugins | head -1``"""
    with subprocess.Popen(
        [sys.executable, "-c", RUN_MAIN, command],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        told = process.stderr.read()
    assert b"Traceback" not in told
    assert b"BrokenPipe" not in told


def on_a_terminal(*args: str, **env: str) -> bytes:
    """What the command writes to a terminal, stdout and stderr together."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", RUN_MAIN, *args], env={**ENVIRONMENT, **env}, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    written = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # Linux reports the end of a terminal as an I/O error
            break
        if not piece:
            break
        written += piece
    os.close(ours)
    process.wait(timeout=60)
    return written


COMMANDS = [("--help",), ("families",), ("nonsense",)]


@pytest.mark.parametrize("args", COMMANDS, ids=" ".join)
def test_no_color_and_a_pipe_give_plain_text(args: tuple[str, ...]) -> None:
    assert b"\x1b" not in on_a_terminal(*args, NO_COLOR="1", FUEL_PLUGINS="absent")
    assert b"\x1b" not in on_a_terminal(*args, TERM="dumb", FUEL_PLUGINS="absent")
    piped = fuel_process(*args, FUEL_PLUGINS="absent")
    assert "\x1b" not in piped.stdout + piped.stderr


@pytest.mark.parametrize("args", COMMANDS, ids=" ".join)
def test_a_terminal_gets_colours(args: tuple[str, ...]) -> None:
    assert b"\x1b[" in on_a_terminal(*args, FUEL_PLUGINS="absent")


def test_a_table_in_a_pipe_is_aligned_and_never_wraps(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("A", "B", "C"), [("long cell", "[bold]", "x" * 300), ("", "b", "")])
    assert capsys.readouterr().out == f"A          B       C\nlong cell  [bold]  {'x' * 300}\n           b\n"


def test_output_that_the_terminal_cannot_show_is_no_traceback() -> None:
    code = (
        "import typer, fuel_core.cli.app as a\n"
        "@a.app.command()\n"
        "def write(): typer.echo('caf\\u00e9')\n"
        "a.main()"
    )
    result = fuel_process("write", code=code, PYTHONIOENCODING="iso-8859-5")
    assert (result.returncode, result.stdout) == (0, "caf?\n")


def heavy_modules_after(code: str, *args: str) -> list[str]:
    report = "import sys; print('HEAVY', *sorted({'torch', 'transformers', 'pydantic'} & sys.modules.keys()))"
    result = fuel_process(*args, code=f"{code}\n{report}")
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()[-1].split()[1:]


@pytest.mark.parametrize("command", ["--help", "--version", "families", "plugins"])
def test_the_front_door_imports_no_torch(command: str) -> None:
    """Some versions of typer import pydantic to read an option; that is theirs, and quick enough."""
    code = "import contextlib, fuel_core.cli.app as a\nwith contextlib.suppress(SystemExit): a.main()"
    assert {*heavy_modules_after(code, command)} <= {"pydantic"}


@pytest.mark.parametrize(
    "code",
    [
        "import fuel_core",
        "import fuel_core; dir(fuel_core)",
        "import fuel_core.cli.app",
        "from fuel_core.registry import Registry; r = Registry.discover(strict=False); r.clashes",
    ],
)
def test_neither_the_face_nor_discovery_imports_torch_or_pydantic(code: str) -> None:
    assert heavy_modules_after(code) == []
    assert heavy_modules_after(code + "; import pydantic") == ["pydantic"]


def test_what_resolves_on_first_use_is_listed() -> None:
    """Completion in a shell or notebook offered neither load nor the settings."""
    assert {*fuel_core.__all__, "__doc__"} <= {*dir(fuel_core)}
    code = "import fuel_core; print('LAZY', *{'load', 'Sampling', 'LanguageModel'} & {*dir(fuel_core)})"
    assert {*fuel_process(code=code).stdout.split()} == {"LAZY", "load", "Sampling", "LanguageModel"}


@pytest.mark.parametrize(
    ("seconds", "command"),
    [
        (0.5, ("-c", RUN_MAIN, "--help")),
        (0.5, ("-c", RUN_MAIN, "families")),
        (0.5, ("-c", RUN_MAIN, "plugins")),
        (0.1, ("-c", "import fuel_core")),
    ],
    ids=lambda value: str(value[-1]) if isinstance(value, tuple) else "",
)
def test_the_front_door_is_quick(seconds: float, command: tuple[str, ...]) -> None:
    """Median of five, in processor time: the wall clock also measures whatever else the machine does."""

    def processor_seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *command], env=ENVIRONMENT, capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert statistics.median(processor_seconds() for _ in range(5)) < seconds


def test_an_empty_allow_list_leaves_listings_that_say_so() -> None:
    families = fuel_process("families", "--json", FUEL_PLUGINS="")
    assert json.loads(families.stdout) == {"families": [], "failures": []}
    assert json.loads(fuel_process("plugins", "--json", FUEL_PLUGINS="").stdout)["plugins"] == []
    assert "pip install fuel-qwen" in fuel_process("families", FUEL_PLUGINS="").stderr
    assert "pip install fuel-qwen" in fuel_process("plugins", FUEL_PLUGINS="").stdout
