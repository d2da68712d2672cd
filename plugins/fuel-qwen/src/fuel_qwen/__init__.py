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
        )
    ]
