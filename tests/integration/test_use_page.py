"""The page that shows how to use fuel says what works."""

import re
from pathlib import Path

import pytest
from typer.main import get_command

from fuel_core.cli.app import app

PAGE = (Path(__file__).parents[2] / "docs" / "use.md").read_text()


def test_its_examples_run_in_their_order(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 3
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "docs/use.md", "exec"), names)
    printed = capsys.readouterr().out
    assert "plans=1" in printed
    assert len(names["answers"]) == 2  # type: ignore[arg-type]


def test_it_names_every_command() -> None:
    named = set(re.findall(r"`fuel (\w+)", PAGE))
    assert named == set(get_command(app).commands)  # type: ignore[attr-defined]
