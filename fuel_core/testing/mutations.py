"""Faults of the core that a family's tests must see, in every family that uses the part.

Each is applied with monkeypatch to the one function that owns what it breaks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

import fuel_core.blocks.latent_attention
import fuel_core.blocks.mlp
import fuel_core.blocks.norm
import fuel_core.decode.buffers
import fuel_core.decode.driver
import fuel_core.ops.cached
import fuel_core.ops.held
import fuel_core.ops.latent
from fuel_core.blocks.experts import Experts, MoE
from fuel_core.blocks.linear import Linear
from fuel_core.blocks.router import Router
from fuel_core.cache import Cache
from fuel_core.decode.backends.eager import EagerStep
from fuel_core.ops import project
from fuel_core.plans.model_plan import AttentionPlan, GatedMLPPlan, LatentAttentionPlan, ModelPlan
from fuel_core.plans.moe_plan import MoEPlan, RouterPlan
from fuel_core.plans.rope import Layout, RopeVariant
from fuel_core.plans.scaling import LongRopeScaling, YarnScaling
from fuel_core.rotary import RopeRows, RopeTable
from fuel_core.step import LayerStep, Step, StepInputs

Patch = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class CoreMutation:
    """One fault.

    Attributes:
        name: what is broken.
        patch: breaks it.
        uses: whether a model uses the part, so that its tests must see the fault.
        spares_planned_token: the fault lies in the rebind, so the token that plans is right and the
            next one wrong; a test that decodes a single token would be blind to it.
    """

    name: str
    patch: Patch
    uses: Callable[[ModelPlan], bool] = lambda plan: True
    spares_planned_token: bool = False


def _has_window(plan: ModelPlan) -> bool:
    return any(window is not None for window in plan.mask.windows)


def _mixes_windows(plan: ModelPlan) -> bool:
    return len(plan.mask.windows) > 1


def _has_rope(plan: ModelPlan) -> bool:
    return bool(plan.rope.variants)


def _has_yarn(plan: ModelPlan) -> bool:
    return any(isinstance(variant.scaling, YarnScaling) for variant in plan.rope.variants)


def _attentions(plan: ModelPlan) -> list[AttentionPlan]:
    return [layer.mixer for layer in plan.layers if isinstance(layer.mixer, AttentionPlan)]


def _groups(plan: ModelPlan) -> bool:
    return any(1 < mixer.kv_heads < mixer.query_heads for mixer in _attentions(plan))


def _has_bias(plan: ModelPlan) -> bool:
    latent = [layer.mixer for layer in plan.layers if isinstance(layer.mixer, LatentAttentionPlan)]
    return any(mixer.qkv_bias for mixer in _attentions(plan)) or any(mixer.bias for mixer in latent)


def _swap_cos_and_sin(patch: pytest.MonkeyPatch) -> None:
    rows = RopeTable.rows

    def swapped(self: RopeTable, positions: Tensor, regime: Tensor) -> RopeRows:
        right = rows(self, positions, regime)
        return replace(right, cos=right.sin, sin=right.cos)

    patch.setattr(RopeTable, "rows", swapped)


def _double_the_base(patch: pytest.MonkeyPatch) -> None:
    frequencies = RopeVariant.inverse_frequencies
    patch.setattr(
        RopeVariant, "inverse_frequencies", lambda self: frequencies(replace(self, base=2 * self.base))
    )


def _pair_neighbours(patch: pytest.MonkeyPatch) -> None:
    rows = RopeTable.rows
    layouts: dict[Layout, Layout] = {"half": "interleaved", "interleaved": "half"}

    def paired_otherwise(self: RopeTable, positions: Tensor, regime: Tensor) -> RopeRows:
        right = rows(self, positions, regime)
        return replace(right, layout=layouts[right.layout])

    patch.setattr(RopeTable, "rows", paired_otherwise)


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


def _forget(name: str) -> Patch:
    """A rebind that leaves one of the four tensors as the plan found it."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        right = fuel_core.decode.buffers.rebind

        def rebind(buffers: StepInputs, *rest: Any) -> None:
            kept = getattr(buffers, name).clone()
            right(buffers, *rest)
            getattr(buffers, name).copy_(kept)

        monkeypatch.setattr("fuel_core.decode.session.rebind", rebind)

    return patch


def _answer_from_the_old_pool(patch: pytest.MonkeyPatch) -> None:
    bind = EagerStep.bind

    def once(self: EagerStep, *args: Any) -> int:
        return 0 if hasattr(self, "buffers") else bind(self, *args)

    patch.setattr(EagerStep, "bind", once)


def _never_advance(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Cache, "advance", lambda self, ids: None)


def _decode_without_advancing(patch: pytest.MonkeyPatch) -> None:
    right = fuel_core.decode.driver.drive

    def drive(session: Any, token_ids: Sequence[Sequence[int]], caches: Sequence[Cache]) -> Tensor:
        lengths = [cache.length for cache in caches]
        logits = right(session, token_ids, caches)
        for cache, length in zip(caches, lengths, strict=True):
            cache.truncate(length)
        return logits

    patch.setattr("fuel_core.decode.session.drive", drive)


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


def _routers(plan: ModelPlan) -> list[RouterPlan]:
    parts = [layer.feed_forward for layer in plan.layers]
    return [p.router for p in parts if isinstance(p, MoEPlan) and isinstance(p.router, RouterPlan)]


def _routes(wanted: Callable[[RouterPlan], bool]) -> Callable[[ModelPlan], bool]:
    return lambda plan: any(wanted(router) for router in _routers(plan))


def _has_experts(plan: ModelPlan) -> bool:
    return any(isinstance(layer.feed_forward, MoEPlan) for layer in plan.layers)


def _shares(plan: ModelPlan) -> bool:
    return any(isinstance(p.feed_forward, MoEPlan) and p.feed_forward.shared for p in plan.layers)


def _reroute(change: Callable[[RouterPlan], RouterPlan]) -> Patch:
    """Routers that follow another recipe than their plan's."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        right = Router.forward

        def forward(self: Router, x: Tensor) -> tuple[Tensor, Tensor]:
            stated, self.plan = self.plan, change(self.plan)
            try:
                return right(self, x)
            finally:
                self.plan = stated

        monkeypatch.setattr(Router, "forward", forward)

    return patch


def _no_limit(plan: RouterPlan) -> RouterPlan:
    return replace(plan, groups_chosen=plan.groups)


def _let_the_bias_weigh(patch: pytest.MonkeyPatch) -> None:
    right = Router.forward

    def forward(self: Router, x: Tensor) -> tuple[Tensor, Tensor]:
        ids, weights = right(self, x)
        bias = self.e_score_correction_bias
        return ids, weights if bias is None else weights + bias[ids]

    patch.setattr(Router, "forward", forward)


def _choose_without_the_bias(patch: pytest.MonkeyPatch) -> None:
    right = Router.forward

    def forward(self: Router, x: Tensor) -> tuple[Tensor, Tensor]:
        stated, self.e_score_correction_bias = self.e_score_correction_bias, None
        try:
            return right(self, x)
        finally:
            self.e_score_correction_bias = stated

    patch.setattr(Router, "forward", forward)


def _silence_shared_experts(patch: pytest.MonkeyPatch) -> None:
    right = MoE.forward

    def forward(self: MoE, x: Tensor) -> Tensor:
        stated, self.shared = self.shared, None
        try:
            return right(self, x)
        finally:
            self.shared = stated

    patch.setattr(MoE, "forward", forward)


def _ask_the_next_expert(patch: pytest.MonkeyPatch) -> None:
    right = Experts.forward

    def forward(self: Experts, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        return right(self, x, (ids + 1) % self.gate_up.weight.shape[0], weights)

    patch.setattr(Experts, "forward", forward)


def _has_gated_mlp(plan: ModelPlan) -> bool:
    return any(isinstance(layer.feed_forward, GatedMLPPlan) for layer in plan.layers)


def _has_latent_attention(plan: ModelPlan) -> bool:
    return any(isinstance(layer.mixer, LatentAttentionPlan) for layer in plan.layers)


def _absorbs_equal_halves(plan: ModelPlan) -> bool:
    """W_UV can pass for W_UK where both have one shape."""
    mixers = [layer.mixer for layer in plan.layers if isinstance(layer.mixer, LatentAttentionPlan)]
    return any(mixer.nope_dim == mixer.value_dim and mixer.absorbs(1) for mixer in mixers)


def _swap_gate_and_up(patch: pytest.MonkeyPatch) -> None:
    mlp = fuel_core.blocks.mlp.GatedMLP

    def forward(self: Any, x: Tensor) -> Tensor:
        up, gate = self.gate_up(x).chunk(2, dim=-1)
        y: Tensor = self.down(self.activation(gate) * up)
        return y

    patch.setattr(mlp, "forward", forward)


def _longropes(plan: ModelPlan) -> list[LongRopeScaling]:
    scalings = [variant.scaling for variant in plan.rope.variants]
    return [scaling for scaling in scalings if isinstance(scaling, LongRopeScaling)]


def _has_two_tables(plan: ModelPlan) -> bool:
    return any(scaling.short_factor != scaling.long_factor for scaling in _longropes(plan))


def _keep_the_first_table(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LongRopeScaling, "regime", lambda self, length: 0)


def _keep_keys_of_the_first_table(patch: pytest.MonkeyPatch) -> None:
    def enter(self: Any, token_ids: Sequence[Sequence[int]], caches: Sequence[Cache | None]) -> None:
        for cache, ids in zip(caches, token_ids, strict=True):
            if cache is not None:
                cache.regime = self.decoder.plan.rope.regime(cache.length + len(ids))

    patch.setattr("fuel_core.decode.session.DecodeSession._enter_regimes", enter)


def _forget_the_magnitude_of_longrope(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LongRopeScaling, "magnitudes", property(lambda self: (1.0, 1.0)))


def _forget_the_magnitude(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(YarnScaling, "magnitudes", property(lambda self: (1.0,)))


CORE_MUTATIONS = (
    CoreMutation("cos and sin swapped", _swap_cos_and_sin, _has_rope),
    CoreMutation("rope base doubled", _double_the_base, _has_rope),
    CoreMutation("rope pairs of the other layout", _pair_neighbours, _has_rope),
    CoreMutation("yarn magnitude forgotten", _forget_the_magnitude, _has_yarn),
    CoreMutation(
        "longrope magnitude forgotten",
        _forget_the_magnitude_of_longrope,
        lambda plan: any(scaling.magnitudes != (1.0, 1.0) for scaling in _longropes(plan)),
    ),
    CoreMutation("the first rope table at every length", _keep_the_first_table, _has_two_tables),
    CoreMutation("keys of the first rope table kept", _keep_keys_of_the_first_table, _has_two_tables),
    CoreMutation("windows one token too wide", _widen_windows, _has_window),
    CoreMutation("decode ignores windows", _let_the_range_ignore_windows, _has_window),
    CoreMutation("one mask for all layers", _give_all_layers_one_mask, _mixes_windows),
    CoreMutation("slab written at offset 0", _write_at_zero),
    CoreMutation("one key too many is read", _read_one_too_many),
    CoreMutation("query heads dealt to groups in turn", _deal_heads_round_robin, _groups),
    CoreMutation("rebind forgets the token", _forget("token_ids_BT"), spares_planned_token=True),
    CoreMutation("rebind forgets the position", _forget("positions_BT"), spares_planned_token=True),
    CoreMutation("rebind forgets the row", _forget("rows_B")),
    CoreMutation("a foreign pool is not bound", _answer_from_the_old_pool),
    CoreMutation("the cache never advances", _never_advance),
    CoreMutation("a decoded token is not counted", _decode_without_advancing, spares_planned_token=True),
    CoreMutation("biases dropped", _drop_biases, _has_bias),
    CoreMutation("norm weights skipped", _skip_norm_weights),
    CoreMutation("norm biases skipped", _skip_norm_biases, lambda plan: plan.norm.kind == "layer"),
    CoreMutation("gate and up swapped", _swap_gate_and_up, _has_gated_mlp),
    CoreMutation("W_UV read as W_UK", _read_w_uv_as_w_uk, _absorbs_equal_halves),
    CoreMutation("k_pe zeroed", _zero_the_shared_key, _has_latent_attention),
    CoreMutation("shared experts silent", _silence_shared_experts, _shares),
    CoreMutation("the next expert asked", _ask_the_next_expert, _has_experts),
    CoreMutation(
        "routed weights unscaled",
        _reroute(lambda router: replace(router, scale=1.0)),
        _routes(lambda router: router.scale != 1),
    ),
    CoreMutation(
        "routed weights normalised otherwise",
        _reroute(lambda router: replace(router, normalise=not router.normalise)),
        _routes(lambda router: True),
    ),
    CoreMutation(
        "experts of passed-over groups chosen", _reroute(_no_limit), _routes(lambda router: router.limited)
    ),
    CoreMutation(
        "the correction bias weighs", _let_the_bias_weigh, _routes(lambda router: router.correction_bias)
    ),
    CoreMutation(
        "the correction bias does not choose",
        _choose_without_the_bias,
        _routes(lambda router: router.correction_bias),
    ),
)
