"""The picture of a plan. Needs matplotlib, which is an extra; without it only its absence is tested."""

import json
import sys
from pathlib import Path

import pytest

from fuel_core.cli.plan_image import draw, save_image
from fuel_core.errors import RequestError
from fuel_core.inspection.plan_report import PlanReport, read_report
from fuel_core.registry import Registry


@pytest.fixture
def report(tmp_path: Path) -> PlanReport:
    registry = Registry.discover(strict=True)
    path = tmp_path / r"$\odd$ config.json"  # which matplotlib would read as a formula, a wrong one
    path.write_text(json.dumps(registry.family("qwen2").tiny["mixed-window"]))
    return read_report(registry, str(path))


def test_a_layer_is_a_row_as_long_as_what_it_sees(report: PlanReport) -> None:
    pytest.importorskip("matplotlib")
    (axes,) = draw(report).axes
    assert [(bar.get_y() + bar.get_height() / 2, bar.get_width()) for bar in axes.patches] == [
        pytest.approx((layer, width)) for layer, width in enumerate((5, 256, 256, 5))
    ]
    assert axes.yaxis_inverted()
    texts = [text.get_text() for text in axes.texts]
    assert texts[0] == texts[3] == "window 5, base 37"
    assert texts[1] == texts[2] == "causal, base 37"
    (entry,) = axes.get_legend().get_texts()
    assert entry.get_text() == "RoPE base 37, width 8, scaling none"


def test_the_suffix_names_the_format(report: PlanReport, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    save_image(report, tmp_path / "plan.png")
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    save_image(report, tmp_path / "plan.SVG")
    assert b"<svg" in (tmp_path / "plan.SVG").read_bytes()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("plan.txt", r"plan\.txt should end in one of .*\.png"),
        ("plan", r"plan should end in one of"),
        ("absent/plan.png", r"plan\.png cannot be written"),
    ],
)
def test_a_file_that_cannot_be_drawn_into_is_refused(
    name: str, message: str, report: PlanReport, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(RequestError, match=message):
        save_image(report, tmp_path / name)


def test_without_matplotlib_the_error_says_what_to_install(
    report: PlanReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(RequestError, match=r"pip install 'fuel-core\[image\]'"):
        save_image(report, tmp_path / "plan.png")
    assert not (tmp_path / "plan.png").exists()
