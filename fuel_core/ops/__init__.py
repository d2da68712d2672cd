"""The operations that fuel registers with torch, each with a reference for every device.

Importing this package registers them.
"""

import fuel_core.ops.cuda  # noqa: F401  registers what serves on CUDA
from fuel_core.ops.cached import attend
from fuel_core.ops.experts import apply_experts
from fuel_core.ops.gate import gated
from fuel_core.ops.kernels import follows_length
from fuel_core.ops.latent import absorb_query, attend_absorbed, attend_expanded, expand, expand_context
from fuel_core.ops.norm import add_rms_norm, rms_norm
from fuel_core.ops.one_shot import attend_one_shot
from fuel_core.ops.precision import at_least_float32
from fuel_core.ops.projection import project

__all__ = [
    "absorb_query",
    "add_rms_norm",
    "apply_experts",
    "at_least_float32",
    "attend",
    "attend_absorbed",
    "attend_expanded",
    "attend_one_shot",
    "expand",
    "expand_context",
    "follows_length",
    "gated",
    "project",
    "rms_norm",
]
