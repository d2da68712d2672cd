"""Attention without a cache: masks of any form, and queries that see nothing."""

import pytest
import torch

from fuel_core.ops import attend_one_shot


def inputs(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, ...]:
    draw = torch.Generator().manual_seed(0)
    shapes = ((2, 5, 6, 4), (2, 5, 2, 4), (2, 5, 2, 4))
    return tuple(torch.randn(shape, generator=draw, dtype=torch.float64).to(dtype) for shape in shapes)


CAUSAL = torch.ones(5, 5, dtype=torch.bool).tril()


def test_equals_torchs_own_attention() -> None:
    q, k, v = inputs()
    wanted = torch.nn.functional.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), CAUSAL, scale=0.7, enable_gqa=True
    ).transpose(1, 2)
    torch.testing.assert_close(attend_one_shot(q, k, v, CAUSAL, 0.7, None), wanted, atol=1e-12, rtol=0)


def test_added_mask_equals_bool_mask() -> None:
    added = torch.zeros(5, 5, dtype=torch.float64).masked_fill(~CAUSAL, -torch.inf)
    both = [attend_one_shot(*inputs(), mask, 0.7, 3.0) for mask in (CAUSAL, added)]
    torch.testing.assert_close(*both, atol=1e-12, rtol=0)


def test_a_mask_for_each_sequence() -> None:
    masks = torch.stack((CAUSAL, torch.ones_like(CAUSAL)))
    together = attend_one_shot(*inputs(), masks, 0.7, None)
    for b in range(2):
        alone = attend_one_shot(*inputs(), masks[b], 0.7, None)
        torch.testing.assert_close(together[b], alone[b], atol=1e-12, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("added", [False, True])
def test_a_query_that_sees_no_key_gives_zeros(added: bool, dtype: torch.dtype) -> None:
    """A softmax over no key is NaN, and NaN spreads through every later layer to the other tokens;
    engines returned empty text for left-padded prompts."""
    q, k, v = (tensor.requires_grad_() for tensor in inputs(dtype))
    mask = CAUSAL.clone()
    mask[2] = False
    used = torch.zeros(5, 5).masked_fill(~mask, -torch.inf) if added else mask
    out = attend_one_shot(q, k, v, used, 0.7, None)
    assert out.isfinite().all()
    assert (out[:, 2] == 0).all()
    torch.testing.assert_close(out[:, 3], attend_one_shot(q, k, v, CAUSAL, 0.7, None)[:, 3])
    out.sum().backward()
    assert all(t.grad is not None and t.grad.isfinite().all() for t in (q, k, v))


def test_gradients_are_those_of_finite_differences() -> None:
    tensors = tuple(tensor.requires_grad_() for tensor in inputs())
    assert torch.autograd.gradcheck(lambda q, k, v: attend_one_shot(q, k, v, CAUSAL, 0.7, 2.0), tensors)
