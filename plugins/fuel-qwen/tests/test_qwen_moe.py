"""Qwen2-MoE and Qwen3-MoE: which layers have experts, how they are weighed, what each key means."""

from typing import Any

import pytest
import torch
from torch import Tensor

from fuel_core.blocks import MoE
from fuel_core.errors import ConfigError
from fuel_core.family import Family
from fuel_core.plans import GatedMLPPlan, ModelPlan, MoEPlan, RouterPlan
from fuel_core.testing import Case, checks
from fuel_qwen.architecture import QwenOptions
from fuel_qwen.qwen2_moe import QWEN2_MOE
from fuel_qwen.qwen3_moe import QWEN3_MOE

BASE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rope_theta": 1e6,
    "num_experts": 14,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 20,
}
OWN: dict[str, dict[str, Any]] = {
    "qwen2_moe": {"shared_expert_intermediate_size": 28},
    "qwen3_moe": {},
}
BOTH = pytest.mark.parametrize("family", [QWEN2_MOE, QWEN3_MOE], ids=lambda family: family.name)


def planned(family: Family, **changes: Any) -> ModelPlan:
    """The plan of BASE with changes; ``...`` takes a key away."""
    raw = {"model_type": family.name, **BASE, **OWN[family.name], **changes}
    raw = {key: value for key, value in raw.items() if value is not ...}
    config, _ = family.config.read(raw, source="here/config.json")
    return family.plan(config, QwenOptions())


def sparse(model: ModelPlan) -> list[int]:
    return [i for i, layer in enumerate(model.layers) if isinstance(layer.feed_forward, MoEPlan)]


def block(family: Family, **changes: Any) -> MoE:
    """The first layer's experts, in float32, with random weights."""
    raw = {"model_type": family.name, **BASE, **OWN[family.name], **changes}
    case = Case.build(family, "plain", dtype=torch.float32, raw=raw)
    feed_forward = case.decoder.layers[0].feed_forward
    assert isinstance(feed_forward, MoE)
    return feed_forward


@BOTH
class TestWhichLayersHaveExperts:
    @pytest.mark.parametrize(
        ("changes", "wanted"),
        [
            ({}, [0, 1, 2, 3, 4, 5]),
            ({"decoder_sparse_step": 2, "mlp_only_layers": [1]}, [3, 5]),
            ({"decoder_sparse_step": 2}, [1, 3, 5]),
            ({"decoder_sparse_step": 3}, [2, 5]),
            ({"decoder_sparse_step": 7}, []),
            ({"mlp_only_layers": [0, 5]}, [1, 2, 3, 4]),
            ({"mlp_only_layers": None}, [0, 1, 2, 3, 4, 5]),
            ({"num_experts": 0}, []),
        ],
        ids=str,
    )
    def test_step_list_and_count(self, family: Family, changes: dict[str, Any], wanted: list[int]) -> None:
        """Engines built a dense block everywhere, or ignored the list."""
        model = planned(family, **changes)
        assert sparse(model) == wanted
        dense = {layer.feed_forward for i, layer in enumerate(model.layers) if i not in wanted}
        assert dense <= {GatedMLPPlan(width=128, activation="silu")}

    @pytest.mark.parametrize(
        ("changes", "named"),
        [
            ({"mlp_only_layers": [6]}, "mlp_only_layers names layer 6, num_hidden_layers is 6"),
            ({"mlp_only_layers": [-1]}, "mlp_only_layers"),
            ({"mlp_only_layers": [True]}, "mlp_only_layers"),
            ({"mlp_only_layers": 1}, "mlp_only_layers is 1"),
            ({"decoder_sparse_step": 0}, "decoder_sparse_step is 0"),
            ({"num_experts_per_tok": 15}, r"num_experts_per_tok \(15\) and num_experts \(14\)"),
            ({"num_experts": -1}, "num_experts is -1"),
            ({"num_experts": ...}, "num_experts is missing"),
            ({"num_experts_per_tok": ...}, "num_experts_per_tok is missing"),
            ({"moe_intermediate_size": ...}, "moe_intermediate_size is missing"),
            ({"norm_topk_prob": None}, "norm_topk_prob is None"),
            ({"n_shared_experts": 1}, "n_shared_experts"),
            ({"scoring_func": "sigmoid"}, "scoring_func"),
        ],
        ids=str,
    )
    def test_nonsense_names_its_key(self, family: Family, changes: dict[str, Any], named: str) -> None:
        """Sizes of experts are never guessed, as no size of a model is."""
        with pytest.raises(ConfigError, match=named):
            planned(family, **changes)


@BOTH
@pytest.mark.parametrize("normalise", [..., False, True], ids=["absent", "false", "true"])
def test_the_recipe(family: Family, normalise: Any) -> None:
    layer = planned(family, norm_topk_prob=normalise, hidden_act="gelu").layers[0]
    shared = GatedMLPPlan(width=28, activation="gelu") if family is QWEN2_MOE else None
    assert layer.feed_forward == MoEPlan(
        router=RouterPlan(experts=14, chosen=3, scoring="softmax", normalise=normalise is True),
        expert_width=20,
        activation="gelu",
        shared=shared,
        shared_gate=family is QWEN2_MOE,
    )


@BOTH
@pytest.mark.parametrize(
    ("chosen", "normalise", "wanted"),
    [(2, False, [0.643914, 0.236883]), (2, True, [0.731059, 0.268941]), (1, True, [1.0])],
)
def test_weights_of_the_logits_2_1_0_minus_1(
    family: Family, chosen: int, normalise: bool, wanted: list[float]
) -> None:
    """A softmax over all experts first: raw logits, or a softmax over the chosen, are known faults."""
    router = block(family, num_experts=4, num_experts_per_tok=chosen, norm_topk_prob=normalise).router
    router.weight.copy_(torch.eye(4, 64))
    x = torch.tensor([[2.0, 1.0, 0.0, -1.0] + [0.0] * 60])
    ids, weights = router(x)
    assert ids.tolist() == [list(range(chosen))]
    torch.testing.assert_close(weights, torch.tensor([wanted]), atol=2e-6, rtol=0)


def test_the_shared_expert_is_added_times_the_sigmoid_of_its_gate() -> None:
    """The gate gives -2, 0 and 2: factors 0.119203, 0.5 and 0.880797, on the shared output alone."""
    moe = block(QWEN2_MOE)
    assert moe.shared is not None
    assert moe.shared_gate is not None
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(1))
    gate = torch.linalg.lstsq(x, torch.tensor([[-2.0], [0.0], [2.0]])).solution
    moe.shared_gate.weight.copy_(gate.T)
    routed = moe.experts(x, *moe.router(x))
    factors: Tensor = (moe(x) - routed) / moe.shared(x)
    wanted = torch.tensor([[0.119203], [0.5], [0.880797]]).expand(3, 64)
    torch.testing.assert_close(factors, wanted, atol=1e-4, rtol=0)


@BOTH
def test_windows_by_qwens_own_rule(family: Family) -> None:
    """transformers lets other layers slide in both families, so it is no oracle here."""
    windows = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2}
    raw = {"model_type": family.name, **BASE, **OWN[family.name], **windows}
    case = Case.build(family, "plain", raw={**raw, "num_hidden_layers": 3})
    assert [case.plan.mask.window(layer) for layer in range(3)] == [5, 5, None]
    checks.windows_matter(case)
    checks.cached_equals_one_shot(case)


class TestQwen2MoE:
    def test_biases_on_q_k_and_v_unless_switched_off(self) -> None:
        for changes, wanted in ({}, True), ({"qkv_bias": False}, False):
            mixer = planned(QWEN2_MOE, **changes).layers[0].mixer
            assert (mixer.qkv_bias, mixer.out_bias, mixer.qk_norm) == (wanted, False, None)

    def test_no_width_is_no_shared_expert(self) -> None:
        layer = planned(QWEN2_MOE, shared_expert_intermediate_size=0).layers[0]
        assert (layer.feed_forward.shared, layer.feed_forward.shared_gate) == (None, False)
        with pytest.raises(ConfigError, match="shared_expert_intermediate_size is missing"):
            planned(QWEN2_MOE, shared_expert_intermediate_size=...)

    def test_key_value_heads_absent_and_null(self) -> None:
        for changes, wanted in (..., 16), (None, 32), (1, 1):
            model = planned(QWEN2_MOE, num_attention_heads=32, num_key_value_heads=changes)
            assert model.layers[0].mixer.kv_heads == wanted

    def test_another_count_is_not_read(self) -> None:
        with pytest.raises(ConfigError, match="num_local_experts"):
            planned(QWEN2_MOE, num_local_experts=14)


class TestQwen3MoE:
    def test_no_head_dim_is_the_quotient(self) -> None:
        """Unlike the dense Qwen3, where it is 128."""
        for changes in ({}, {"head_dim": None}):
            assert planned(QWEN3_MOE, **changes).layers[0].mixer.head_dim == 16
        assert planned(QWEN3_MOE, head_dim=128).layers[0].mixer.head_dim == 128

    def test_norms_on_q_and_k_and_biases_where_stated(self) -> None:
        for changes, wanted in ({}, False), ({"attention_bias": True}, True):
            model = planned(QWEN3_MOE, rms_norm_eps=1e-5, **changes)
            mixer = model.layers[0].mixer
            assert (mixer.qkv_bias, mixer.out_bias, mixer.qk_norm) == (wanted, wanted, model.norm)

    def test_key_value_heads_absent_and_null(self) -> None:
        for changes, wanted in (..., 4), (None, 32), (1, 1):
            model = planned(QWEN3_MOE, num_attention_heads=32, num_key_value_heads=changes)
            assert model.layers[0].mixer.kv_heads == wanted

    @pytest.mark.parametrize(
        "changes",
        [
            {"num_experts": ..., "num_local_experts": 12},
            {"num_experts": None, "num_local_experts": 12},
            {"num_experts": 12, "num_local_experts": None},
            {"num_experts": 12, "num_local_experts": 12},
        ],
        ids=str,
    )
    def test_the_count_under_both_names(self, changes: dict[str, Any]) -> None:
        """transformers 5 saves num_local_experts where published files have num_experts."""
        assert planned(QWEN3_MOE, **changes).layers[0].feed_forward.router.experts == 12

    @pytest.mark.parametrize("other", [12, 0])
    def test_two_counts_contradict(self, other: int) -> None:
        with pytest.raises(ConfigError, match=f"num_experts is 14, num_local_experts is {other}"):
            planned(QWEN3_MOE, num_local_experts=other)

    def test_what_published_files_add_changes_nothing(self) -> None:
        """Qwen3-Coder states what every Qwen3-MoE is; anything else is another model."""
        coder = {"qkv_bias": False, "use_qk_norm": True, "shared_expert_intermediate_size": 0}
        assert planned(QWEN3_MOE, **coder) == planned(QWEN3_MOE)
        for key in ("qkv_bias", "use_qk_norm"):
            with pytest.raises(ConfigError, match=key):
                planned(QWEN3_MOE, **{key: not coder[key]})

    def test_no_shared_expert(self) -> None:
        with pytest.raises(ConfigError, match="shared_expert_intermediate_size"):
            planned(QWEN3_MOE, shared_expert_intermediate_size=28)
