"""The keys of a gated feed-forward block."""

from pydantic import PositiveInt

from fuel_core.config.family_config import FamilyConfig
from fuel_core.plans.model_plan import ActivationName, GatedMLPPlan


class GatedMLPKeys(FamilyConfig):
    """Its width and its activation, ``silu`` when absent."""

    intermediate_size: PositiveInt
    hidden_act: ActivationName = "silu"

    def gated_mlp(self, *, bias: bool = False, width: int | None = None) -> GatedMLPPlan:
        """The block of this width, or of another."""
        width = self.intermediate_size if width is None else width
        return GatedMLPPlan(width=width, activation=self.hidden_act, bias=bias)
