"""The activations that config.json files name."""

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

ActivationName = Literal["silu", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu"]


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """The function that ``hidden_act`` names; see ``ActivationName``."""
    tanh_gelu = partial(F.gelu, approximate="tanh")
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "silu": F.silu,
        "gelu": F.gelu,
        "gelu_new": tanh_gelu,
        "gelu_pytorch_tanh": tanh_gelu,
        "relu": F.relu,
    }
    return functions[name]
