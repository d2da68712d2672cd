"""Mixer and feed-forward side by side on one norm, and the plain MLP: against their formulas."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from fuel_core.blocks import MLP, ParallelLayer, PreNormLayer, RMSNorm, pre_norm_decoder
from fuel_core.family import Family
from fuel_core.plans import LayerPlan, MLPPlan, NormPlan
from fuel_core.testing import Case

HIDDEN, WIDTH = 6, 10


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def filled(block: nn.Module) -> nn.Module:
    for parameter in block.parameters():
        parameter.data = drawn(*parameter.shape)
    return block


class Twice(nn.Module):
    def forward(self, x: Tensor, step: object) -> Tensor:
        return 2 * x


@pytest.mark.parametrize("bias", [True, False])
def test_mlp(bias: bool) -> None:
    block = filled(MLP(HIDDEN, MLPPlan(width=WIDTH, activation="gelu_new", bias=bias)))
    x = drawn(2, 3, HIDDEN)
    up, down = drawn(WIDTH, HIDDEN), drawn(HIDDEN, WIDTH)
    up_bias, down_bias = (drawn(WIDTH), drawn(HIDDEN)) if bias else (torch.zeros(()), torch.zeros(()))
    hidden = x @ up.T + up_bias
    # the tanh form, written out
    inner = (2 / torch.pi) ** 0.5 * (hidden + 0.044715 * hidden**3)
    wanted = (0.5 * hidden * (1 + inner.tanh())) @ down.T + down_bias
    torch.testing.assert_close(block(x), wanted, atol=1e-12, rtol=0)


def test_a_parallel_layer_reads_one_norm_of_its_input() -> None:
    norm = nn.LayerNorm(HIDDEN, dtype=torch.float64)
    layer = ParallelLayer(norm=norm, mixer=Twice(), feed_forward=nn.Tanh())
    x = drawn(2, 3, HIDDEN)
    normed = F.layer_norm(x, (HIDDEN,))
    torch.testing.assert_close(layer(x, None), x + 2 * normed + normed.tanh(), atol=1e-12, rtol=0)


def test_a_sequential_layer_takes_any_norm() -> None:
    """Of torch, or of a family: only the core's own is fused with the sum before it."""
    norms = [nn.LayerNorm(HIDDEN, dtype=torch.float64) for _ in range(2)]
    layer = PreNormLayer(
        mixer_norm=norms[0], mixer=Twice(), feed_forward_norm=norms[1], feed_forward=nn.Tanh()
    )
    x = drawn(2, 3, HIDDEN)
    y = x + 2 * F.layer_norm(x, (HIDDEN,))
    torch.testing.assert_close(layer(x, None), y + F.layer_norm(y, (HIDDEN,)).tanh(), atol=1e-12, rtol=0)


def test_hooks_of_every_norm_are_called(qwen2: Family) -> None:
    """The norm behind a sum once went by without them."""
    case = Case.build(qwen2, "dense")
    called: list[nn.Module] = []
    norms = [module for module in case.decoder.modules() if isinstance(module, RMSNorm)]
    for norm in norms:
        norm.register_forward_hook(lambda module, *_: called.append(module))
    case.one_shot([1, 2, 3])
    assert called == norms
    called.clear()
    everywhere = register_module_forward_hook(lambda module, *_: called.append(module))
    case.one_shot([1, 2, 3])
    everywhere.remove()
    assert [module for module in called if module in norms] == [norm for norm in norms for _ in range(2)]


def test_the_plan_says_which_layers_are_parallel(qwen2: Family) -> None:
    plan = Case.build(qwen2, "dense").plan
    layers = tuple(
        LayerPlan(layer.mixer, MLPPlan(width=WIDTH, activation="relu", bias=True), parallel=index == 1)
        for index, layer in enumerate(plan.layers)
    )
    with torch.device("meta"):
        decoder = pre_norm_decoder(replace(plan, norm=NormPlan("layer", 1e-5), layers=layers))
    kinds = [type(layer) for layer in decoder.layers]
    assert kinds == [ParallelLayer if index == 1 else PreNormLayer for index in range(len(kinds))]
    assert decoder.plan.structure != replace(decoder.plan, layers=layers[::-1]).structure
