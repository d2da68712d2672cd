"""The activations that config.json files name, within kernels."""

import triton
import triton.language as tl


@triton.jit
def activated(x, NAME: tl.constexpr):
    """The activation that ``hidden_act`` names, of float32."""
    if NAME == "silu":
        y = x / (1.0 + tl.exp(-x))
    elif NAME == "relu":
        y = tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)  # as torch: damage shows
    elif NAME == "gelu":
        y = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    else:
        tl.static_assert((NAME == "gelu_new") | (NAME == "gelu_pytorch_tanh"), "unknown activation")
        # 0.5 * (1 + tanh(z)) is the logistic function of 2 z
        z = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        y = x / (1.0 + tl.exp(-2.0 * z))
    return y
