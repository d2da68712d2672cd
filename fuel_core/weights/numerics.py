"""The dtypes that a model is loaded in: what was asked, else what the checkpoint says, never more.

On a CPU that multiplies bfloat16 in hardware a bfloat16 model runs as it is. On one that does not,
and for float16, weights and cache keep their stored dtype and activations are float32.
"""

import torch

from fuel_core.errors import RequestError
from fuel_core.plans.model_plan import Numerics

_NAMES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def dtype_of(name: str | torch.dtype) -> torch.dtype:
    """The torch dtype of a name such as ``"bfloat16"``.

    Raises:
        RequestError: a dtype that no model runs in.
    """
    dtype = name if isinstance(name, torch.dtype) else _NAMES.get(str(name).removeprefix("torch."))
    if dtype is None or dtype not in _NAMES.values():
        raise RequestError(f"dtype {name} is unknown; known are {', '.join(_NAMES)}")
    return dtype


def resolve_numerics(
    *,
    requested: torch.dtype | None,
    config: str | None,
    stored: torch.dtype,
    cache: torch.dtype | None,
    device: torch.device,
) -> Numerics:
    """Decide the dtypes of one model.

    Args:
        requested: the user's choice, which wins.
        config: the config's own statement, which beats ``stored``.
        stored: the dtype of the checkpoint's matrices.
        cache: the user's choice for the cache; None lets it follow the weights.
        device: where the model will run.
    """
    weights = requested or (dtype_of(config) if config else None) or stored
    if weights not in _NAMES.values():
        raise RequestError(f"the checkpoint stores {weights}, which no model runs in; choose a dtype")
    return Numerics(weights=weights, activations=_activations(weights, device), cache=cache or weights)


def _activations(weights: torch.dtype, device: torch.device) -> torch.dtype:
    if device.type != "cpu" or weights in (torch.float32, torch.float64):
        return weights
    units = torch.cpu.get_capabilities()
    if weights is torch.bfloat16 and (units.get("avx512_bf16") or units.get("amx_bf16")):
        return weights
    return torch.float32
