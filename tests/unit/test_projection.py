"""One row of bfloat16 through a matrix, and the switch that it takes."""

from contextlib import suppress
from threading import Barrier, BrokenBarrierError, Thread, current_thread
from time import sleep

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
    """Without a lock the last to leave restored what the first had set: oneDNN stayed off for good."""
    x, weight = operands()
    arrived, meeting = [], Barrier(2)

    def slow_product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        arrived.append(current_thread())
        is_second = len(arrived) == 2
        with suppress(BrokenBarrierError):  # a lock keeps the two from meeting
            meeting.wait(timeout=0.2)
        if is_second:
            sleep(0.1)
        return x @ weight.T

    monkeypatch.setattr(projection.F, "linear", slow_product)
    threads = [Thread(target=project, args=(x, weight)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(arrived) == 2
    assert torch._C._get_mkldnn_enabled() is onednn
