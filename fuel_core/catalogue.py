"""Which pip package provides which ``model_type``: for the hint when no installed plugin does.

Not a registry: an installed plugin is asked first, and a package that is absent here works as well.
"""

from collections.abc import Mapping
from types import MappingProxyType

MODEL_TYPES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "fuel-deepseek": ("deepseek_v2", "deepseek_v3"),
        "fuel-llama": ("llama", "mistral", "smollm3"),
        "fuel-phi": ("phi", "phi3", "phimoe"),
        "fuel-qwen": ("qwen2", "qwen3", "qwen2_moe", "qwen3_moe"),
    }
)


def package_for(model_type: str) -> str | None:
    """The distribution that is known to provide ``model_type``, or None if none is known."""
    return next((package for package, known in MODEL_TYPES.items() if model_type in known), None)
