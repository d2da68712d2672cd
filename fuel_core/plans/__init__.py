"""Frozen descriptions of a model, made from its config before any weight is read."""

from fuel_core.plans.cache_spec import CacheSpec, KVSlots, LatentSlots, Slots
from fuel_core.plans.mask import UNBOUNDED, MaskPlan, first_visible, visible
from fuel_core.plans.model_plan import (
    ActivationName,
    AttentionPlan,
    GatedMLPPlan,
    LatentAttentionPlan,
    LayerPlan,
    MLPPlan,
    ModelPlan,
    NormPlan,
    Numerics,
)
from fuel_core.plans.moe_plan import MoEPlan, RouterPlan, Routing
from fuel_core.plans.rope import Layout, RopePlan, RopeVariant
from fuel_core.plans.scaling import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    NoScaling,
    Scaling,
    YarnScaling,
    dynamic_base,
    yarn_magnitude,
)

__all__ = [
    "UNBOUNDED",
    "ActivationName",
    "AttentionPlan",
    "CacheSpec",
    "DynamicScaling",
    "GatedMLPPlan",
    "KVSlots",
    "LatentAttentionPlan",
    "LatentSlots",
    "LayerPlan",
    "Layout",
    "LinearScaling",
    "Llama3Scaling",
    "LongRopeScaling",
    "MLPPlan",
    "MaskPlan",
    "MoEPlan",
    "ModelPlan",
    "NoScaling",
    "NormPlan",
    "Numerics",
    "RopePlan",
    "RopeVariant",
    "RouterPlan",
    "Routing",
    "Scaling",
    "Slots",
    "YarnScaling",
    "dynamic_base",
    "first_visible",
    "visible",
    "yarn_magnitude",
]
