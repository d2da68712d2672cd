"""The activations that config.json files name, and their derivatives."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from fuel_core.plans.model_plan import ActivationName


def activation(name: ActivationName) -> Callable[[Tensor], Tensor]:
    """The function that ``hidden_act`` names."""
    tanh_gelu = partial(F.gelu, approximate="tanh")
    functions: dict[ActivationName, Callable[[Tensor], Tensor]] = {
        "silu": F.silu,
        "gelu": F.gelu,
        "gelu_new": tanh_gelu,
        "gelu_pytorch_tanh": tanh_gelu,
        "relu": F.relu,
    }
    return functions[name]


def activation_backward(name: ActivationName) -> Callable[[Tensor, Tensor], Tensor]:
    """(gradient of the output, input) -> gradient of the input, for code that autograd does not record."""
    aten = torch.ops.aten
    tanh_gelu = partial(aten.gelu_backward, approximate="tanh")
    functions: dict[ActivationName, Callable[[Tensor, Tensor], Tensor]] = {
        "silu": aten.silu_backward,
        "gelu": aten.gelu_backward,
        "gelu_new": tanh_gelu,
        "gelu_pytorch_tanh": tanh_gelu,
        "relu": partial(aten.threshold_backward, threshold=0),
    }
    return functions[name]
