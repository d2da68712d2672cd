"""Llama-like model families for fuel. This module only registers them; it imports no torch."""

from fuel_core import FamilyCard, hookimpl


@hookimpl
def fuel_families() -> list[FamilyCard]:
    return [
        FamilyCard(
            name="llama",
            model_types=("llama",),
            definition="fuel_llama.llama:LLAMA",
            summary="Llama 1 to 3.3, TinyLlama, SmolLM, Yi and others of the architecture",
            source="The Llama 3 Herd of Models, arXiv:2407.21783",
            presets={
                "1b": "meta-llama/Llama-3.2-1B-Instruct",
                "3b": "meta-llama/Llama-3.2-3B-Instruct",
                "8b": "meta-llama/Llama-3.1-8B-Instruct",
                "70b": "meta-llama/Llama-3.3-70B-Instruct",
                "tiny": "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
                "smollm2-135m": "HuggingFaceTB/SmolLM2-135M-Instruct",
                "smollm2-1.7b": "HuggingFaceTB/SmolLM2-1.7B-Instruct",
            },
        )
    ]
