"""Linear layers: weights narrower than their input, and biases wider than it."""

import pytest
import torch

from fuel_core.blocks import Linear
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


@pytest.mark.parametrize("gradients", [True, False])
def test_a_bias_is_added_in_the_wider_dtype_and_rounded_once(gradients: bool) -> None:
    linear = Linear(4, 3, bias=True).bfloat16()
    linear.bias.data = torch.tensor([1e-3, 2.0, 257.0])  # type: ignore[union-attr]
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)).bfloat16()
    product = x @ linear.weight.T
    with torch.set_grad_enabled(gradients):
        found = linear(x)
    assert found.dtype is torch.bfloat16
    assert torch.equal(found, (product.float() + linear.bias).bfloat16())  # type: ignore[operator]


def test_a_bias_may_be_mapped_over() -> None:
    """A sum in place would have fewer dimensions than what is added."""
    linear = Linear(4, 3, bias=True)
    biases, x = torch.randn(7, 3), torch.randn(5, 4)

    def run(bias: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(linear, {"bias": bias}, (x,))

    found = torch.func.vmap(run)(biases)
    torch.testing.assert_close(found, (x @ linear.weight.T)[None] + biases[:, None])
