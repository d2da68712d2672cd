"""Linear layers whose weights are narrower than their input."""

import pytest
import torch

from fuel_core.ops import project, projection


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("tile", [1, 64, 10_000])
def test_tiles_give_what_a_cast_of_the_whole_gives(
    rows: int, tile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = torch.Generator().manual_seed(0)
    weight = torch.randn(37, 16, generator=draw).to(torch.bfloat16)
    x = torch.randn(2, rows, 16, generator=draw)
    monkeypatch.setattr(projection, "TILE_ELEMENTS", tile)
    torch.testing.assert_close(project(x, weight), x @ weight.float().T, atol=1e-5, rtol=0)


def test_no_wide_copy_of_the_weights_is_made() -> None:
    """A step that cast its whole model moved five times its bytes, and the head half a gigabyte."""
    weight = torch.zeros(40_000, 256, dtype=torch.bfloat16)
    with torch.profiler.profile(profile_memory=True) as profile:
        project(torch.zeros(1, 256), weight)
    allocated = max(event.self_cpu_memory_usage for event in profile.events())
    assert 0 < allocated < weight.numel(), "a quarter of what the whole would take in float32"
