"""``fuel::experts``: each token through the experts that its router chose, and no other.

Letters: N tokens, K experts chosen for a token, E experts, M model width, I expert width.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from fuel_core.ops.activation import activation, activation_backward
from fuel_core.ops.projection import project
from fuel_core.plans.model_plan import ActivationName

torch.library.define(
    "fuel::experts",
    "(Tensor x, Tensor gate_up, Tensor down, Tensor ids, Tensor weights, str activation) -> Tensor",
)
torch.library.define(
    "fuel::experts_backward",
    "(Tensor grad, Tensor x, Tensor gate_up, Tensor down, Tensor ids, Tensor weights, str activation)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
)

FEW_TOKENS = 8
"""Up to so many tokens each is evaluated by itself on a CPU, so that its result is the same bits whatever
the others chose. Beyond, reading an expert's matrices once for all its tokens is faster."""


def apply_experts(
    x_NM: Tensor,
    gate_up: Tensor,
    down: Tensor,
    ids_NK: Tensor,
    weights_NK: Tensor,
    activation: ActivationName,
) -> Tensor:
    """Return the weighted sum of each token's chosen experts, ``down(activation(gate(x)) * up(x))``.

    Args:
        x_NM: floating.
        gate_up: ``[E, 2I, M]``, the gate's rows before the up projection's; may have another dtype than x.
        down: ``[E, M, I]``, of the dtype of ``gate_up``.
        ids_NK: int64, the experts of each token, each at most once.
        weights_NK: of at least float32.
        activation: what ``hidden_act`` names.

    Returns:
        ``[N, M]`` in the dtype of x, summed in at least float32. Differentiable once in all but the ids;
        the gradient of an expert that no token chose is zero.
    """
    out_NM: Tensor = torch.ops.fuel.experts(x_NM, gate_up, down, ids_NK, weights_NK, activation)
    return out_NM


def experts_reference(
    x: Tensor, gate_up: Tensor, down: Tensor, ids: Tensor, weights: Tensor, activation: ActivationName
) -> Tensor:
    """The definition, for every device: every expert for every token, no value on the host."""
    total_NM = _zeros(x, weights)
    for expert in range(gate_up.shape[0]):
        chosen_NK = ids == expert
        share_N1 = (weights * chosen_NK).sum(-1, keepdim=True)
        y_NM = share_N1 * _evaluate(x, gate_up[expert], down[expert], activation)
        # not a product with zero: an expert that was not chosen may hold NaN
        total_NM += y_NM.masked_fill(~chosen_NK.any(-1, keepdim=True), 0)
    return total_NM.to(x.dtype)


def experts_cpu(
    x: Tensor, gate_up: Tensor, down: Tensor, ids: Tensor, weights: Tensor, activation: ActivationName
) -> Tensor:
    """Reads the chosen experts' matrices alone, where they lie."""
    total_NM = _zeros(x, weights)
    if x.shape[0] <= FEW_TOKENS:
        for expert, token, share in _choices(ids, weights):
            y_1M = _evaluate(x[token : token + 1], gate_up[expert], down[expert], activation)
            total_NM[token : token + 1].add_(y_1M, alpha=share)
    else:
        for expert, pairs in _groups(ids, gate_up.shape[0]):
            tokens = pairs // ids.shape[1]
            y_TM = _evaluate(x[tokens], gate_up[expert], down[expert], activation)
            total_NM.index_add_(0, tokens, y_TM * weights.flatten()[pairs, None])
    return total_NM.to(x.dtype)


def _zeros(x: Tensor, weights: Tensor) -> Tensor:
    return torch.zeros(x.shape, dtype=torch.promote_types(x.dtype, weights.dtype), device=x.device)


def _choices(ids_NK: Tensor, weights_NK: Tensor) -> list[tuple[int, int, float]]:
    """(expert, token, weight), an expert's tokens one after another: its matrices stay in the cache."""
    tokens = [token for token in range(ids_NK.shape[0]) for _ in range(ids_NK.shape[1])]
    return sorted(zip(ids_NK.flatten().tolist(), tokens, weights_NK.flatten().tolist(), strict=True))


def _groups(ids_NK: Tensor, experts: int) -> Iterator[tuple[int, Tensor]]:
    """Each chosen expert and which of the N * K choices are it, in the order of tokens."""
    ids = ids_NK.flatten()
    counts = ids.bincount(minlength=experts).tolist()
    for expert, pairs in enumerate(ids.argsort(stable=True).split(counts)):
        if pairs.numel():
            yield expert, pairs


def _evaluate(x: Tensor, gate_up: Tensor, down: Tensor, name: ActivationName) -> Tensor:
    gate, up = project(x, gate_up).chunk(2, dim=-1)
    return project(activation(name)(gate) * up, down)


def experts_backward_reference(
    grad: Tensor,
    x: Tensor,
    gate_up: Tensor,
    down: Tensor,
    ids: Tensor,
    weights: Tensor,
    activation: ActivationName,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of x, gate_up, down and weights, every expert for every token."""
    grad_x, grad_weights = _zeros(x, weights), torch.zeros_like(weights)
    grad_gate_up, grad_down = torch.zeros_like(gate_up), torch.zeros_like(down)
    for expert in range(gate_up.shape[0]):
        chosen_NK = ids == expert
        chosen_N1 = chosen_NK.any(-1, keepdim=True)
        share_N1 = (weights * chosen_NK).sum(-1, keepdim=True)
        back = _evaluate_backward(grad, x, share_N1, gate_up[expert], down[expert], activation)
        grad_x += back[0].masked_fill(~chosen_N1, 0)
        grad_gate_up[expert] = back[1].masked_fill(~chosen_N1.any(), 0)
        grad_down[expert] = back[2].masked_fill(~chosen_N1.any(), 0)
        grad_weights += back[3].masked_fill(~chosen_NK, 0)
    return grad_x.to(x.dtype), grad_gate_up, grad_down, grad_weights


def experts_backward_cpu(
    grad: Tensor,
    x: Tensor,
    gate_up: Tensor,
    down: Tensor,
    ids: Tensor,
    weights: Tensor,
    activation: ActivationName,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same, of the chosen experts alone."""
    grad_x, grad_weights = _zeros(x, weights), torch.zeros_like(weights)
    grad_gate_up, grad_down = torch.zeros_like(gate_up), torch.zeros_like(down)
    for expert, pairs in _groups(ids, gate_up.shape[0]):
        tokens = pairs // ids.shape[1]
        share_T1 = weights.flatten()[pairs, None]
        back = _evaluate_backward(
            grad[tokens], x[tokens], share_T1, gate_up[expert], down[expert], activation
        )
        grad_x.index_add_(0, tokens, back[0])
        grad_gate_up[expert], grad_down[expert] = back[1], back[2]
        grad_weights.view(-1)[pairs] = back[3][:, 0]
    return grad_x.to(x.dtype), grad_gate_up, grad_down, grad_weights


def _evaluate_backward(
    grad: Tensor, x: Tensor, share_T1: Tensor, gate_up: Tensor, down: Tensor, name: ActivationName
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of x, gate_up, down and the share of one expert; its hidden units are computed again."""
    wide = torch.promote_types(x.dtype, share_T1.dtype)
    grad, x, gate_up, down = (tensor.to(wide) for tensor in (grad, x, gate_up, down))
    gate, up = (x @ gate_up.T).chunk(2, dim=-1)
    active = activation(name)(gate)
    hidden = active * up
    grad_per_share = grad @ down
    grad_hidden = share_T1 * grad_per_share
    grad_gate = activation_backward(name)(grad_hidden * up, gate)
    grad_gate_up = torch.cat((grad_gate, grad_hidden * active), dim=-1)
    return (
        grad_gate_up @ gate_up,
        grad_gate_up.T @ x,
        (share_T1 * grad).T @ hidden,
        (grad_per_share * hidden).sum(-1, keepdim=True),
    )


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.activation = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    grad_x, grad_gate_up, grad_down, grad_weights = torch.ops.fuel.experts_backward(
        grad, *ctx.saved_tensors, ctx.activation
    )
    return grad_x, grad_gate_up, grad_down, None, grad_weights, None


def _experts_shape(x: Tensor, *_: object) -> Tensor:
    return x.new_empty(x.shape)


def _experts_backward_shape(
    grad: Tensor, x: Tensor, gate_up: Tensor, down: Tensor, ids: Tensor, weights: Tensor, activation: str
) -> tuple[Tensor, ...]:
    return tuple(torch.empty_like(tensor) for tensor in (x, gate_up, down, weights))


torch.library.impl("fuel::experts", "CompositeExplicitAutograd", experts_reference)
torch.library.impl("fuel::experts", "CPU", experts_cpu)
torch.library.register_fake("fuel::experts", _experts_shape)
torch.library.register_autograd("fuel::experts", _backward, setup_context=_setup_context)
torch.library.impl("fuel::experts_backward", "CompositeExplicitAutograd", experts_backward_reference)
torch.library.impl("fuel::experts_backward", "CPU", experts_backward_cpu)
torch.library.register_fake("fuel::experts_backward", _experts_backward_shape)
