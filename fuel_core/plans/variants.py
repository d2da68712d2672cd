"""The assignment of layers to the variants of a plan, checked in one place."""

from collections.abc import Sequence

from fuel_core.errors import PlanError


def check_assignment(plan: str, variants: int, per_layer: Sequence[int | None]) -> None:
    """Check that there are variants and layers and that each layer names one of the variants.

    Raises:
        PlanError: naming the plan, the layer and the variant.
    """
    if not per_layer:
        raise PlanError(f"the {plan} plan covers no layer")
    if variants == 0 and any(variant is not None for variant in per_layer):
        raise PlanError(f"the {plan} plan defines no variant")
    for layer, variant in enumerate(per_layer):
        if variant is not None and not 0 <= variant < variants:
            raise PlanError(
                f"the {plan} plan gives layer {layer} variant {variant}, but it defines {variants} variant(s)"
            )
    unused = set(range(variants)) - set(per_layer)
    if unused:
        raise PlanError(f"the {plan} plan defines variant(s) {sorted(unused)} that no layer uses")
