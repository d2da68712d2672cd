"""Qwen model families for fuel. This module only registers them; it imports no torch."""

from fuel_core import FamilyCard, hookimpl


@hookimpl
def fuel_families() -> list[FamilyCard]:
    return [
        FamilyCard(
            name="qwen2",
            model_types=("qwen2",),
            definition="fuel_qwen.qwen2:QWEN2",
            summary="Qwen2 and Qwen2.5, dense: biased q/k/v, grouped queries, optional windows",
            source="Qwen2 Technical Report, arXiv:2407.10671",
            aliases=("qwen", "qwen2.5"),
            presets={
                "0.5b": "Qwen/Qwen2.5-0.5B-Instruct",
                "1.5b": "Qwen/Qwen2.5-1.5B-Instruct",
                "3b": "Qwen/Qwen2.5-3B-Instruct",
                "7b": "Qwen/Qwen2.5-7B-Instruct",
            },
            bundled="fuel_qwen:checkpoints/qwen2",
        ),
        FamilyCard(
            name="qwen3",
            model_types=("qwen3",),
            definition="fuel_qwen.qwen3:QWEN3",
            summary="Qwen3, dense: q and k normalised head by head",
            source="Qwen3 Technical Report, arXiv:2505.09388",
            presets={
                "0.6b": "Qwen/Qwen3-0.6B",
                "1.7b": "Qwen/Qwen3-1.7B",
                "4b": "Qwen/Qwen3-4B",
                "8b": "Qwen/Qwen3-8B",
                "14b": "Qwen/Qwen3-14B",
                "32b": "Qwen/Qwen3-32B",
            },
        ),
        FamilyCard(
            name="qwen2_moe",
            model_types=("qwen2_moe",),
            definition="fuel_qwen.qwen2_moe:QWEN2_MOE",
            summary="Qwen1.5-MoE and Qwen2-57B-A14B: routed experts beside a gated shared one",
            source="Qwen2 Technical Report, arXiv:2407.10671",
            aliases=("qwen2-moe", "qwen1.5-moe"),
            presets={
                "a2.7b": "Qwen/Qwen1.5-MoE-A2.7B-Chat",
                "57b-a14b": "Qwen/Qwen2-57B-A14B-Instruct",
            },
        ),
        FamilyCard(
            name="qwen3_moe",
            model_types=("qwen3_moe",),
            definition="fuel_qwen.qwen3_moe:QWEN3_MOE",
            summary="Qwen3-30B-A3B and 235B-A22B: normalised q and k, routed experts",
            source="Qwen3 Technical Report, arXiv:2505.09388",
            aliases=("qwen3-moe",),
            presets={
                "30b-a3b": "Qwen/Qwen3-30B-A3B",
                "235b-a22b": "Qwen/Qwen3-235B-A22B",
            },
        ),
    ]
