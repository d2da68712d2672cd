"""fuel: a plugin-based model zoo and decode engine for open-weight language models.

::

    import fuel_core

    model = fuel_core.load("qwen2")
    print(model.generate("In the beginning", max_tokens=32).text)

Importing this package imports neither torch nor any plugin; names resolve on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fuel_core.errors import FuelError, FuelWarning
from fuel_core.plugin import FamilyCard, hookimpl

if TYPE_CHECKING:
    from fuel_core.generate.completion import Completion
    from fuel_core.generate.sampling import Sampling
    from fuel_core.generate.settings import GenerationSettings
    from fuel_core.loading import load
    from fuel_core.model import LanguageModel

__version__ = "0.1.0"

_LAZY = {
    "load": "fuel_core.loading",
    "LanguageModel": "fuel_core.model",
    "Completion": "fuel_core.generate.completion",
    "GenerationSettings": "fuel_core.generate.settings",
    "Sampling": "fuel_core.generate.sampling",
}

__all__ = [
    "Completion",
    "FamilyCard",
    "FuelError",
    "FuelWarning",
    "GenerationSettings",
    "LanguageModel",
    "Sampling",
    "__version__",
    "hookimpl",
    "load",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'fuel_core' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
