"""DeepSeek model families for fuel. This module only registers them; it imports no torch."""

from fuel_core import FamilyCard, hookimpl


@hookimpl
def fuel_families() -> list[FamilyCard]:
    return [
        FamilyCard(
            name="deepseek_v2",
            model_types=("deepseek_v2",),
            definition="fuel_deepseek.deepseek_v2:DEEPSEEK_V2",
            summary="DeepSeek-V2, V2-Lite and V2.5: latent attention, softmax routing",
            source="DeepSeek-V2, arXiv:2405.04434",
            aliases=("deepseek",),
            presets={
                "lite": "deepseek-ai/DeepSeek-V2-Lite-Chat",
                "chat": "deepseek-ai/DeepSeek-V2-Chat",
                "2.5": "deepseek-ai/DeepSeek-V2.5-1210",
                "coder-lite": "deepseek-ai/DeepSeek-Coder-V2-Lite-Instruct",
            },
            bundled="fuel_deepseek:checkpoints/deepseek",
        ),
        FamilyCard(
            name="deepseek_v3",
            model_types=("deepseek_v3",),
            definition="fuel_deepseek.deepseek_v3:DEEPSEEK_V3",
            summary="DeepSeek-V3, V3.1 and R1: latent attention, sigmoid routing with a correction bias",
            source="DeepSeek-V3 Technical Report, arXiv:2412.19437",
            presets={
                "v3": "deepseek-ai/DeepSeek-V3-0324",
                "v3.1": "deepseek-ai/DeepSeek-V3.1",
                "r1": "deepseek-ai/DeepSeek-R1-0528",
            },
        ),
    ]
