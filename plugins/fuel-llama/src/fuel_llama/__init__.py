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
                "2-7b": "meta-llama/Llama-2-7b-chat-hf",
                "2-13b": "meta-llama/Llama-2-13b-chat-hf",
                "tinyllama": "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
                "smollm2-135m": "HuggingFaceTB/SmolLM2-135M-Instruct",
                "smollm2-360m": "HuggingFaceTB/SmolLM2-360M-Instruct",
                "smollm2-1.7b": "HuggingFaceTB/SmolLM2-1.7B-Instruct",
                "yi-6b": "01-ai/Yi-1.5-6B-Chat",
                "yi-9b": "01-ai/Yi-1.5-9B-Chat",
            },
            bundled="fuel_llama:checkpoints/llama",
        ),
        FamilyCard(
            name="mistral",
            model_types=("mistral",),
            definition="fuel_llama.mistral:MISTRAL",
            summary="Mistral 7B, Nemo and Small: Llama without biases, with one window or none",
            source="Mistral 7B, arXiv:2310.06825",
            presets={
                "7b": "mistralai/Mistral-7B-Instruct-v0.3",
                "7b-v0.1": "mistralai/Mistral-7B-Instruct-v0.1",
                "nemo": "mistralai/Mistral-Nemo-Instruct-2407",
                "small": "mistralai/Mistral-Small-24B-Instruct-2501",
                "zephyr": "HuggingFaceH4/zephyr-7b-beta",
            },
        ),
        FamilyCard(
            name="smollm3",
            model_types=("smollm3",),
            definition="fuel_llama.smollm3:SMOLLM3",
            summary="SmolLM3: Llama of which every fourth layer has no RoPE",
            source="SmolLM3: smol, multilingual, long-context reasoner, huggingface.co/blog/smollm3",
            presets={
                "3b": "HuggingFaceTB/SmolLM3-3B",
                "3b-base": "HuggingFaceTB/SmolLM3-3B-Base",
            },
        ),
    ]
