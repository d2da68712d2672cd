"""Frozen descriptions of a model, made from its config before any weight is read."""

from fuel_core.plans.cache_spec import CacheSpec, KVSlots, LatentSlots, Slots
from fuel_core.plans.mask import UNBOUNDED, MaskPlan, first_visible, visible
from fuel_core.plans.model_plan import AttentionPlan, GatedMLPPlan, LayerPlan, ModelPlan, Numerics
from fuel_core.plans.rope import RopePlan, RopeVariant
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
    "AttentionPlan",
    "CacheSpec",
    "DynamicScaling",
    "GatedMLPPlan",
    "KVSlots",
    "LatentSlots",
    "LayerPlan",
    "LinearScaling",
    "Llama3Scaling",
    "LongRopeScaling",
    "MaskPlan",
    "ModelPlan",
    "NoScaling",
    "Numerics",
    "RopePlan",
    "RopeVariant",
    "Scaling",
    "Slots",
    "YarnScaling",
    "dynamic_base",
    "first_visible",
    "visible",
    "yarn_magnitude",
]
