"""What Phi-3 and Phi-3.5-MoE share: how their configs state LongRoPE, the trained length and the window.

Source: LongRoPE (arXiv:2402.13753) and the published configs of Phi-3, Phi-3.5, Phi-4-mini and Phi-3.5-MoE.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, PositiveInt, model_validator

from fuel_core.config import ANY_VALUE, NULL_IS_ABSENT, AttentionKeys, RopeKeys, shown
from fuel_core.plans import MaskPlan

TRAINED_LENGTH = 4096
"""The ``original_max_position_embeddings`` of a file that states none: that of every Phi with LongRoPE."""

_EARLY_NAMES = ("su", "yarn")
"""What early files call LongRoPE. No Phi was published with YaRN itself."""

_KIND_KEYS = ("rope_type", "type")
_LENGTH = "original_max_position_embeddings"


@dataclass(frozen=True, kw_only=True)
class NoOptions:
    """What a user may choose at load: nothing."""


class LongContextKeys(AttentionKeys, RopeKeys):
    """``original_max_position_embeddings``, at the top level or inside of the recipe, and
    ``sliding_window``, the number of keys that a query sees, itself among them: no window when absent,
    null or 0."""

    irrelevant: ClassVar = {"embd_pdrop": ANY_VALUE, "resid_pdrop": ANY_VALUE}

    original_max_position_embeddings: Annotated[PositiveInt | None, NULL_IS_ABSENT] = None
    sliding_window: Annotated[int, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _check_kinds(self) -> Self:
        for key, recipe in self.rope_recipes().items():
            for name in _KIND_KEYS:
                if recipe.get(name) not in (None, "default", "longrope"):
                    raise ValueError(
                        f"{key}.{name} is {shown(recipe[name])}; this family has longrope (in early files "
                        f"{' or '.join(_EARLY_NAMES)}), or no scaling"
                    )
        return self

    @model_validator(mode="after")
    def _check_early_names(self) -> Self:
        for key, stated in super().rope_recipes().items():
            kind = stated.get("rope_type", stated.get("type"))
            if kind in _EARLY_NAMES and stated.get("short_factor") is None:
                raise ValueError(
                    f"{key} is of kind {kind!r}, which in this family names LongRoPE, and states no "
                    "short_factor; no Phi was published with YaRN"
                )
        return self

    @model_validator(mode="after")
    def _check_trained_length(self) -> Self:
        stated = self.original_max_position_embeddings
        for key, recipe in self.rope_recipes().items():
            inner = recipe.get(_LENGTH)
            if None not in (stated, inner) and inner != stated:
                raise ValueError(
                    f"{_LENGTH} is {stated} at the top level and {shown(inner)} in {key}; keep the length, "
                    "in tokens, up to which the short factors were trained"
                )
        return self

    def rope_recipes(self) -> dict[str, dict[str, Any]]:
        """As the core reads them, LongRoPE under its own name."""
        return {
            key: {
                name: "longrope" if name in _KIND_KEYS and value in _EARLY_NAMES else value
                for name, value in recipe.items()
            }
            for key, recipe in super().rope_recipes().items()
        }

    @property
    def trained_length(self) -> int:
        """The tokens up to which the short factors serve, where the recipe itself does not say."""
        return self.original_max_position_embeddings or TRAINED_LENGTH

    def windows(self) -> MaskPlan:
        """The window of every layer."""
        return MaskPlan.per_layer_window(self.num_hidden_layers, self.sliding_window, lambda layer: True)
