"""Faults of attention: what is seen, where it is written, whose it is."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import fuel_core.blocks.latent_attention
import fuel_core.ops.cached
import fuel_core.ops.held
import fuel_core.ops.latent
from fuel_core.plans.model_plan import AttentionPlan, LatentAttentionPlan, ModelPlan
from fuel_core.step import LayerStep, Step
from fuel_core.testing.mutations.mutation import CoreMutation


def _has_window(plan: ModelPlan) -> bool:
    return any(window is not None for window in plan.mask.windows)


def _mixes_windows(plan: ModelPlan) -> bool:
    return len(plan.mask.windows) > 1


def _attentions(plan: ModelPlan) -> list[AttentionPlan]:
    return [layer.mixer for layer in plan.layers if isinstance(layer.mixer, AttentionPlan)]


def _groups(plan: ModelPlan) -> bool:
    return any(1 < mixer.kv_heads < mixer.query_heads for mixer in _attentions(plan))


def _widen_windows(patch: pytest.MonkeyPatch) -> None:
    def off_by_one(query: Any, window: Any) -> Any:
        return query - window

    patch.setattr(fuel_core.ops.held, "first_visible", off_by_one)
    patch.setattr("fuel_core.plans.mask.first_visible", off_by_one)


def _let_the_range_ignore_windows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fuel_core.ops.held, "first_visible", lambda query, window: 0)


def _give_all_layers_one_mask(patch: pytest.MonkeyPatch) -> None:
    cached = Step.cached

    def uniform(*args: Any) -> Step:
        layers: Any = cached(*args).layers
        first = layers[0]
        return Step([replace(layer, window=first.window, mask_TS=first.mask_TS) for layer in layers])

    patch.setattr(Step, "cached", uniform)


def _write_at_zero(patch: pytest.MonkeyPatch) -> None:
    def move(pool: Tensor, rows: Tensor, positions: Tensor, new_BX: Tensor) -> None:
        """Move the entry of the one new token to the start of its row; ``pool`` is [rows, ..., C, D]."""
        if positions.shape[1] == 1:
            pool.transpose(1, -2)[rows, positions[:, 0]] = 0
            pool.transpose(1, -2)[rows, 0] = new_BX.to(pool.dtype)

    right = fuel_core.ops.cached.attend

    def attend(q: Tensor, k: Tensor, v: Tensor, k_pool: Tensor, v_pool: Tensor, *rest: Any) -> Tensor:
        out = right(q, k, v, k_pool, v_pool, *rest)
        for pool, new in ((k_pool, k), (v_pool, v)):
            move(pool, rest[0], rest[1], new[:, 0])
        return out

    patch.setattr("fuel_core.step.attend", attend)

    def moving(form: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def attend_latent(
            q: Tensor, q_pe: Tensor, new: Tensor, pool: Tensor, w_kv: Tensor, *rest: Any
        ) -> Tensor:
            out = form(q, q_pe, new, pool, w_kv, *rest)
            move(pool, rest[0], rest[1], new[:, 0])
            return out

        return attend_latent

    patch.setattr("fuel_core.step.attend_absorbed", moving(fuel_core.ops.latent.attend_absorbed))
    patch.setattr("fuel_core.step.attend_expanded", moving(fuel_core.ops.latent.attend_expanded))


def _patch_attend_row(patch: pytest.MonkeyPatch, attend_row: Callable[..., Tensor]) -> None:
    for module in (fuel_core.ops.cached, fuel_core.ops.latent):
        patch.setattr(module, "attend_row", attend_row)


def _read_one_too_many(patch: pytest.MonkeyPatch) -> None:
    right = fuel_core.ops.held.attend_row

    def attend_row(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tensor:
        if len(q) > 1:
            return right(q, k, v, *rest)
        longer_k, longer_v = (torch.cat((x, torch.zeros_like(x[:, :1])), 1) for x in (k, v))
        return right(q, longer_k, longer_v, *rest)

    _patch_attend_row(patch, attend_row)


def _deal_heads_round_robin(patch: pytest.MonkeyPatch) -> None:
    right = fuel_core.ops.held.attend_row

    def attend_row(q: Tensor, k: Tensor, *rest: Any) -> Tensor:
        tokens, heads, dim = q.shape
        dealt = q.view(tokens, -1, len(k), dim).transpose(1, 2).reshape(tokens, heads, dim)
        return right(dealt, k, *rest)

    _patch_attend_row(patch, attend_row)


def _read_w_uv_as_w_uk(patch: pytest.MonkeyPatch) -> None:
    def one_half(w_kv: Tensor, nope_dim: int) -> tuple[Tensor, Tensor]:
        return w_kv[:, :nope_dim], w_kv[:, :nope_dim]

    patch.setattr(fuel_core.ops.latent, "split_heads", one_half)


def _zero_the_shared_key(patch: pytest.MonkeyPatch) -> None:
    block = fuel_core.blocks.latent_attention.LatentAttention
    right = block.forward

    class Deaf:
        """A step that hears nothing of ``k_pe``."""

        def __init__(self, step: LayerStep) -> None:
            self.step, self.rope, self.attend = step, step.rope, step.attend

        def attend_latent(self, q: Tensor, q_pe: Tensor, latent: Tensor, k_pe: Tensor, *rest: Any) -> Tensor:
            return self.step.attend_latent(q, q_pe, latent, torch.zeros_like(k_pe), *rest)

    def deaf(self: Any, x: Tensor, step: LayerStep) -> Tensor:
        hard_of_hearing: Any = Deaf(step)
        return right(self, x, hard_of_hearing)

    patch.setattr(block, "forward", deaf)


def _has_latent_attention(plan: ModelPlan) -> bool:
    return any(isinstance(layer.mixer, LatentAttentionPlan) for layer in plan.layers)


def _absorbs_equal_halves(plan: ModelPlan) -> bool:
    """W_UV can pass for W_UK where both have one shape."""
    mixers = [layer.mixer for layer in plan.layers if isinstance(layer.mixer, LatentAttentionPlan)]
    return any(mixer.nope_dim == mixer.value_dim and mixer.absorbs(1) for mixer in mixers)


ATTENTION_MUTATIONS = (
    CoreMutation("windows one token too wide", _widen_windows, _has_window),
    CoreMutation("decode ignores windows", _let_the_range_ignore_windows, _has_window),
    CoreMutation("one mask for all layers", _give_all_layers_one_mask, _mixes_windows),
    CoreMutation("slab written at offset 0", _write_at_zero),
    CoreMutation("one key too many is read", _read_one_too_many),
    CoreMutation("query heads dealt to groups in turn", _deal_heads_round_robin, _groups),
    CoreMutation("W_UV read as W_UK", _read_w_uv_as_w_uk, _absorbs_equal_halves),
    CoreMutation("k_pe zeroed", _zero_the_shared_key, _has_latent_attention),
)
