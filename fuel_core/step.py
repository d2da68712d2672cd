"""One forward pass as a layer sees it: tensors only, and two ways to attend.

A layer's ``forward(x_BTM, step)`` is its only body. What ``step`` is decides where keys and values
come from: ``CachedLayerStep`` stores them in a pool and attends to what the row holds,
``OneShotLayerStep`` attends to the tokens of this call.

Letters: B rows, T new tokens, S attended tokens, H query heads, G key/value heads, D head dim; of MLA:
N unrotated and R rotated dims of a head, V value dim, O = N + V, K latent rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fuel_core.cache import KVBuffers, LatentBuffers, LayerBuffers
from fuel_core.ops import (
    absorb_query,
    attend,
    attend_absorbed,
    attend_expanded,
    attend_one_shot,
    expand,
    expand_context,
)
from fuel_core.plans.mask import UNBOUNDED, visible
from fuel_core.plans.model_plan import LatentAttentionPlan, ModelPlan
from fuel_core.rotary import RopeRows, RopeTable


@dataclass(frozen=True)
class StepInputs:
    """All that changes from token to token: a rebind overwrites these four int64 tensors.

    Attributes:
        token_ids_BT: the new tokens.
        positions_BT: where they stand in their sequences, consecutive along T.
        rows_B: the pool row of each sequence.
        rope_regime_B: the RoPE regime of each sequence.
    """

    token_ids_BT: Tensor
    positions_BT: Tensor
    rows_B: Tensor
    rope_regime_B: Tensor


class LayerStep(Protocol):
    """What a layer may ask of the step it runs in."""

    def rope(self, x_BTHD: Tensor) -> Tensor:
        """Rotate with this layer's recipe; a layer without RoPE gets ``x`` back."""

    def attend(
        self, q_BTHD: Tensor, k_BTGD: Tensor, v_BTGD: Tensor, *, scale: float, softcap: float | None = None
    ) -> Tensor:
        """Store this step's keys and values, attend within this layer's window: ``[B, T, H, D]``."""

    def attend_latent(
        self,
        q_nope_BTHN: Tensor,
        q_pe_BTHR: Tensor,
        latent_BTK: Tensor,
        k_pe_BTR: Tensor,
        w_kv_HOK: Tensor,
        plan: LatentAttentionPlan,
    ) -> Tensor:
        """Store this step's latents and rotated keys, attend in the form that the plan gives for so
        many tokens: ``[B, T, H, V]``."""


@dataclass(frozen=True)
class _RotatingStep:
    rope_rows: RopeRows | None

    def rope(self, x_BTHD: Tensor) -> Tensor:
        return x_BTHD if self.rope_rows is None else self.rope_rows.rotate(x_BTHD)


@dataclass(frozen=True)
class CachedLayerStep(_RotatingStep):
    """A layer's view of a step that runs through a cache pool."""

    buffers: LayerBuffers
    rows_B: Tensor
    positions_BT: Tensor
    window: Tensor
    mask_TS: Tensor | None

    def attend(
        self, q_BTHD: Tensor, k_BTGD: Tensor, v_BTGD: Tensor, *, scale: float, softcap: float | None = None
    ) -> Tensor:
        assert isinstance(self.buffers, KVBuffers), "the cache spec gives this layer no k and v"
        return attend(
            q_BTHD,
            k_BTGD,
            v_BTGD,
            self.buffers.k,
            self.buffers.v,
            self.rows_B,
            self.positions_BT,
            self.window,
            self.mask_TS,
            scale,
            softcap,
        )

    def attend_latent(
        self,
        q_nope_BTHN: Tensor,
        q_pe_BTHR: Tensor,
        latent_BTK: Tensor,
        k_pe_BTR: Tensor,
        w_kv_HOK: Tensor,
        plan: LatentAttentionPlan,
    ) -> Tensor:
        assert isinstance(self.buffers, LatentBuffers), "the cache spec gives this layer no latent"
        form = attend_absorbed if plan.absorbs(q_pe_BTHR.shape[1]) else attend_expanded
        return form(
            q_nope_BTHN,
            q_pe_BTHR,
            torch.cat((latent_BTK, k_pe_BTR), dim=-1),
            self.buffers.buffer,
            w_kv_HOK,
            self.rows_B,
            self.positions_BT,
            self.window,
            self.mask_TS,
            plan.scale,
        )


@dataclass(frozen=True)
class OneShotLayerStep(_RotatingStep):
    """A layer's view of a pass without a cache: differentiable, with any mask."""

    mask: Tensor

    def attend(
        self, q_BTHD: Tensor, k_BTGD: Tensor, v_BTGD: Tensor, *, scale: float, softcap: float | None = None
    ) -> Tensor:
        return attend_one_shot(q_BTHD, k_BTGD, v_BTGD, self.mask, scale, softcap)

    def attend_latent(
        self,
        q_nope_BTHN: Tensor,
        q_pe_BTHR: Tensor,
        latent_BTK: Tensor,
        k_pe_BTR: Tensor,
        w_kv_HOK: Tensor,
        plan: LatentAttentionPlan,
    ) -> Tensor:
        """Expanded unless the plan forces the other form: nothing is cached that could be read again."""
        entries_BTS = torch.cat((latent_BTK, k_pe_BTR), dim=-1)
        if plan.form == "absorbed":
            q = absorb_query(q_nope_BTHN, q_pe_BTHR, w_kv_HOK)
            keys = entries_BTS[:, :, None]
            context = attend_one_shot(q, keys, keys[..., : plan.kv_rank], self.mask, plan.scale, None)
            return expand_context(context, w_kv_HOK, plan.nope_dim)
        keys, values = expand(entries_BTS, w_kv_HOK, plan.nope_dim)
        q = torch.cat((q_nope_BTHN, q_pe_BTHR), dim=-1)
        return attend_one_shot(q, keys, values, self.mask, plan.scale, None)


@dataclass(frozen=True)
class StepTables:
    """The data of a plan on one device: RoPE tables and window widths, one a variant.

    Attributes:
        ropes: the table of each RoPE variant.
        windows: an int64 scalar each mask variant, ``UNBOUNDED`` for none.
    """

    device: torch.device
    ropes: tuple[RopeTable, ...]
    windows: tuple[Tensor, ...]

    @classmethod
    def of(cls, plan: ModelPlan, device: torch.device) -> "StepTables":
        return cls(
            device,
            tuple(RopeTable.of(variant, device) for variant in plan.rope.variants),
            tuple(
                torch.tensor(UNBOUNDED if window is None else window, dtype=torch.int64, device=device)
                for window in plan.mask.windows
            ),
        )


@dataclass(frozen=True)
class Step:
    """One forward pass: what is shared by layers of one variant, made once before the first layer."""

    layers: Sequence[LayerStep]

    def layer(self, index: int) -> LayerStep:
        return self.layers[index]

    @classmethod
    def cached(
        cls,
        plan: ModelPlan,
        tables: StepTables,
        inputs: StepInputs,
        buffers: Sequence[LayerBuffers],
        attended: int,
    ) -> "Step":
        """A step through a cache pool.

        A step of one token needs no mask: its window is a range. One of several has one row, and a
        mask over the ``attended`` tokens that the row holds after this step.
        """
        positions = inputs.positions_BT
        ropes = [table.rows(positions, inputs.rope_regime_B) for table in tables.ropes]
        masks: list[Tensor | None] = [None] * len(tables.windows)
        if positions.shape[1] > 1:
            assert positions.shape[0] == 1, "only single-token steps are batched"
            keys_S = torch.arange(attended, device=positions.device)
            masks = [visible(positions[0, :, None], keys_S, window) for window in tables.windows]
        return cls(
            tuple(
                CachedLayerStep(
                    None if rope is None else ropes[rope],
                    layer_buffers,
                    inputs.rows_B,
                    positions,
                    tables.windows[mask],
                    masks[mask],
                )
                for rope, mask, layer_buffers in zip(
                    plan.rope.per_layer, plan.mask.per_layer, buffers, strict=True
                )
            )
        )

    @classmethod
    def one_shot(
        cls,
        plan: ModelPlan,
        tables: StepTables,
        positions_BT: Tensor,
        rope_regime_B: Tensor,
        mask: Tensor | None = None,
    ) -> "Step":
        """A pass over the tokens of one call. A caller's ``mask`` replaces every layer's mask and
        window; see :func:`fuel_core.ops.attend_one_shot` for its forms."""
        ropes = [table.rows(positions_BT, rope_regime_B) for table in tables.ropes]
        queries, keys = positions_BT[0, :, None], positions_BT[0, None, :]
        masks = [visible(queries, keys, window) if mask is None else mask for window in tables.windows]
        return cls(
            tuple(
                OneShotLayerStep(None if rope is None else ropes[rope], masks[variant])
                for rope, variant in zip(plan.rope.per_layer, plan.mask.per_layer, strict=True)
            )
        )
