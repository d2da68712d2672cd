"""Phi model families for fuel. This module only registers them; it imports no torch."""

from fuel_core import FamilyCard, hookimpl


@hookimpl
def fuel_families() -> list[FamilyCard]:
    return [
        FamilyCard(
            name="phi",
            model_types=("phi",),
            definition="fuel_phi.phi:PHI",
            summary="Phi-1, 1.5 and 2: attention and MLP side by side, LayerNorm, part of each head rotated",
            source="Textbooks Are All You Need II, arXiv:2309.05463",
            aliases=("phi-2", "phi-1.5"),
            presets={
                "1": "microsoft/phi-1",
                "1.5": "microsoft/phi-1_5",
                "2": "microsoft/phi-2",
            },
        ),
        FamilyCard(
            name="phi3",
            model_types=("phi3",),
            definition="fuel_phi.phi3:PHI3",
            summary="Phi-3, 3.5 and 4: fused projections, LongRoPE with two tables",
            source="Phi-3 Technical Report, arXiv:2404.14219",
            aliases=("phi-3", "phi-3.5", "phi-4"),
            presets={
                "mini-4k": "microsoft/Phi-3-mini-4k-instruct",
                "mini-128k": "microsoft/Phi-3-mini-128k-instruct",
                "3.5-mini": "microsoft/Phi-3.5-mini-instruct",
                "4": "microsoft/phi-4",
                "4-mini": "microsoft/Phi-4-mini-instruct",
            },
            bundled="fuel_phi:checkpoints/phi3",
        ),
        FamilyCard(
            name="phimoe",
            model_types=("phimoe",),
            definition="fuel_phi.phimoe:PHIMOE",
            summary="Phi-3.5-MoE, mini and tiny: SparseMixer routing to two experts, LayerNorm",
            source="GRIN: GRadient-INformed MoE, arXiv:2409.12136",
            aliases=("phi-moe", "phi-3.5-moe"),
            presets={
                "3.5": "microsoft/Phi-3.5-MoE-instruct",
                "mini": "microsoft/Phi-mini-MoE-instruct",
                "tiny": "microsoft/Phi-tiny-MoE-instruct",
            },
        ),
    ]
