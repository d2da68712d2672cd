"""Faults of projections, norms and dense feed-forward blocks."""

from typing import Any

import pytest
import torch
from torch import Tensor

import fuel_core.blocks.mlp
import fuel_core.blocks.norm
from fuel_core.blocks.linear import Linear
from fuel_core.ops import gated, project
from fuel_core.plans.model_plan import AttentionPlan, GatedMLPPlan, LatentAttentionPlan, ModelPlan
from fuel_core.testing.mutations.mutation import CoreMutation


def _has_bias(plan: ModelPlan) -> bool:
    mixers = [layer.mixer for layer in plan.layers]
    return any(mixer.qkv_bias for mixer in mixers if isinstance(mixer, AttentionPlan)) or any(
        mixer.bias for mixer in mixers if isinstance(mixer, LatentAttentionPlan)
    )


def _drop_biases(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Linear, "forward", lambda self, x: project(x, self.weight))


def _skip_norm_weights(patch: pytest.MonkeyPatch) -> None:
    rms, layer = fuel_core.blocks.norm.RMSNorm, fuel_core.blocks.norm.LayerNorm
    of_rms, of_layer = rms.forward, layer.forward
    patch.setattr(rms, "forward", lambda self, x: of_rms(self, x) / self.weight)
    patch.setattr(layer, "forward", lambda self, x: (of_layer(self, x) - self.bias) / self.weight + self.bias)


def _skip_norm_biases(patch: pytest.MonkeyPatch) -> None:
    layer = fuel_core.blocks.norm.LayerNorm
    right = layer.forward
    patch.setattr(layer, "forward", lambda self, x: right(self, x) - self.bias)


def _has_gated_mlp(plan: ModelPlan) -> bool:
    return any(isinstance(layer.feed_forward, GatedMLPPlan) for layer in plan.layers)


def _swap_gate_and_up(patch: pytest.MonkeyPatch) -> None:
    mlp = fuel_core.blocks.mlp.GatedMLP

    def forward(self: Any, x: Tensor) -> Tensor:
        swapped = torch.cat(self.gate_up(x).chunk(2, dim=-1)[::-1], dim=-1)
        y: Tensor = self.down(gated(swapped, self.activation))
        return y

    patch.setattr(mlp, "forward", forward)


BLOCKS_MUTATIONS = (
    CoreMutation("biases dropped", _drop_biases, _has_bias),
    CoreMutation("norm weights skipped", _skip_norm_weights),
    CoreMutation("norm biases skipped", _skip_norm_biases, lambda plan: plan.norm.kind == "layer"),
    CoreMutation("gate and up swapped", _swap_gate_and_up, _has_gated_mlp),
)
