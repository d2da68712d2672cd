"""The share of a head that is rotated, read one way for every family that rotates a part."""

from typing import Annotated, Any

from pydantic import Field

from fuel_core.config.family_config import NULL_IS_ABSENT
from fuel_core.config.rope import RopeKeys, RopeSpelling
from fuel_core.config.rope_options import DynamicNTK
from fuel_core.config.shown import shown
from fuel_core.errors import ConfigError

_KEY = "partial_rotary_factor"


class PartialRotaryKeys(RopeKeys):
    """``partial_rotary_factor``: the leading dimensions of a head that are rotated, as a share of all.

    It stands at the top level, or inside of a recipe, as transformers 5 saves it. Null means absent.
    """

    partial_rotary_factor: Annotated[Annotated[float, Field(gt=0, le=1)] | None, NULL_IS_ABSENT] = None

    def rope_recipes(self) -> dict[str, dict[str, Any]]:
        """As :meth:`RopeKeys.rope_recipes`, without the share, which is no part of a recipe's scaling."""
        return {
            key: {name: value for name, value in recipe.items() if name != _KEY}
            for key, recipe in super().rope_recipes().items()
        }

    def rotary_share(self, default: float) -> float:
        """The share that the file states, ``default`` when it states none.

        Raises:
            ConfigError: a share that is no number above 0 and up to 1, or two that differ.
        """
        stated = {} if self.partial_rotary_factor is None else {_KEY: self.partial_rotary_factor}
        for key, recipe in super().rope_recipes().items():
            inner = recipe.get(_KEY)
            if inner is None:
                continue
            if isinstance(inner, bool) or not isinstance(inner, int | float) or not 0 < inner <= 1:
                raise ConfigError(f"{key}.{_KEY} is {shown(inner)}; a number above 0 and up to 1 is expected")
            stated[f"{key}.{_KEY}"] = float(inner)
        if len(set(stated.values())) > 1:
            both = " and ".join(f"{key} is {value}" for key, value in stated.items())
            raise ConfigError(f"{both}; keep the one that the model was trained with")
        return next(iter(stated.values()), default)

    def partial_rope_spelling(
        self,
        *,
        default_theta: float,
        head_dim: int,
        default_share: float,
        original_length: int | None = None,
        dynamic_ntk: DynamicNTK = "refused",
    ) -> RopeSpelling:
        """Resolve the keys for heads of which the first ``int(head_dim * share)`` dimensions rotate.

        Raises:
            ConfigError: as :meth:`RopeKeys.rope_spelling` and :meth:`rotary_share`.
        """
        share = self.rotary_share(default_share)
        return self.rope_spelling(
            default_theta=default_theta,
            width=int(head_dim * share),
            width_key=f"head_dim ({head_dim}) times {_KEY} ({share:g})",
            original_length=original_length,
            dynamic_ntk=dynamic_ntk,
        )
