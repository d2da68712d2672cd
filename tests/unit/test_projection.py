"""One row of bfloat16 through a matrix, and the switch that it takes."""

from threading import Barrier, Thread, current_thread

import pytest
import torch

from fuel_core.ops import project, projection


def operands() -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    return torch.randn(1, 1, 96, generator=draw).bfloat16(), torch.randn(64, 96, generator=draw).bfloat16()


@pytest.fixture
def onednn() -> bool:
    enabled: bool = torch._C._get_mkldnn_enabled()
    return enabled


def test_one_row_of_bfloat16_is_summed_in_float32(onednn: bool) -> None:
    x, weight = operands()
    right = x.double() @ weight.double().T
    torch.testing.assert_close(project(x, weight).double(), right, atol=1e-6, rtol=2**-8)
    assert torch._C._get_mkldnn_enabled() is onednn


def test_gradients_pass_one_row_of_bfloat16() -> None:
    x, weight = (operand.requires_grad_() for operand in operands())
    project(x, weight).sum().backward()
    torch.testing.assert_close(weight.grad, x.detach()[0].expand(64, 96))


def test_a_failed_product_leaves_the_switch_as_it_was(onednn: bool) -> None:
    with pytest.raises(RuntimeError, match="shapes"):
        project(torch.zeros(1, 5, dtype=torch.bfloat16), operands()[1])
    assert torch._C._get_mkldnn_enabled() is onednn


def test_threads_do_not_restore_each_others_switch(onednn: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last to leave restored what the first had set, and oneDNN stayed off for good; or the first to
    leave turned it on again under the other. Nor does either wait for the other's product."""
    x, weight = operands()
    meeting, seen = Barrier(2), []

    def slow_product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        is_second = current_thread() is threads[1]
        meeting.wait(timeout=10)
        if is_second:
            threads[0].join()
        seen.append(torch._C._get_mkldnn_enabled())
        return x @ weight.T

    monkeypatch.setattr(projection.F, "linear", slow_product)
    threads = [Thread(target=project, args=(x, weight)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [False, False]
    assert torch._C._get_mkldnn_enabled() is onednn
