"""The RoPE keys of config.json: four published spellings, resolved in one place.

``rope_theta`` at the top level; ``rope_scaling`` with ``type`` or ``rope_type``; transformers 5's
``rope_parameters``, flat or one dict a layer type. A base inside a dict beats the one at the top
level, which beats the family's default; two recipes that differ are an error.

Source: transformers' configuration format (5.x), the published configs of Llama 3.1, Qwen2.5,
DeepSeek-V2 and Phi-3.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from fuel_core.config.family_config import NULL_IS_ABSENT, FamilyConfig
from fuel_core.config.rope_options import DynamicNTK
from fuel_core.config.rope_recipe import read_scaling
from fuel_core.config.shown import shown
from fuel_core.errors import ConfigError, PlanError
from fuel_core.plans.rope import LARGEST_BASE, Layout, RopeVariant
from fuel_core.plans.scaling import DynamicScaling

FLAT = ""
"""The layer type of a recipe that is stated once for all layers."""


@dataclass(frozen=True)
class RopeSpelling:
    """What the RoPE keys say.

    Attributes:
        key: where the file states them: ``rope_parameters``, ``rope_scaling`` or ``rope_theta``.
        variants: layer type -> recipe; the one key ``""`` when one recipe serves all layers.
        theta_stated: the file states a base, rather than leaving it to the family.
        notes: what was decided between spellings that disagree, and what dynamic NTK ends at.
    """

    key: str
    variants: Mapping[str, RopeVariant]
    theta_stated: bool
    notes: tuple[str, ...]

    @property
    def single(self) -> RopeVariant:
        """The recipe of all layers.

        Raises:
            ConfigError: the file states one recipe a layer type.
        """
        if FLAT not in self.variants:
            raise ConfigError(
                f"{self.key} states one recipe for each of {', '.join(self.variants)}, "
                "but this family has one for all layers"
            )
        return self.variants[FLAT]


class RopeKeys(FamilyConfig):
    """``rope_theta``, ``rope_scaling`` and ``rope_parameters``; null means absent."""

    rope_theta: Annotated[Annotated[float, Field(gt=1, le=LARGEST_BASE)] | None, NULL_IS_ABSENT] = None
    rope_scaling: Annotated[dict[str, Any] | None, NULL_IS_ABSENT] = None
    rope_parameters: Annotated[dict[str, Any] | None, NULL_IS_ABSENT] = None

    def rope_recipes(self) -> dict[str, dict[str, Any]]:
        """The recipes that the file states, by the key that holds each.

        A family with spellings of its own overrides this to say the same in the published words.
        """
        stated = {"rope_parameters": self.rope_parameters, "rope_scaling": self.rope_scaling}
        return {key: recipe for key, recipe in stated.items() if recipe}

    def rope_spelling(
        self,
        *,
        default_theta: float,
        width: int,
        width_key: str = "head_dim (or hidden_size / num_attention_heads)",
        layout: Layout = "half",
        original_length: int | None = None,
        dynamic_ntk: DynamicNTK = "refused",
    ) -> RopeSpelling:
        """Resolve the keys.

        Args:
            default_theta: the base when the file states none.
            width: the rotary width in dimensions.
            width_key: the key that it comes from, for messages.
            layout: how the family pairs dimensions.
            original_length: the trained context in tokens where the recipe itself does not state
                it (a top-level ``original_max_position_embeddings``).
            dynamic_ntk: the user's choice; see :class:`fuel_core.config.RopeOptions`.

        Raises:
            ConfigError: an unknown kind or key, a missing one, or spellings that contradict.
        """
        if width < 2 or width % 2:
            raise ConfigError(f"{width_key} gives a rotary width of {width}; an even number is expected")
        groups = {key: _by_layer_type(key, recipe) for key, recipe in self.rope_recipes().items()}
        notes: list[str] = []
        bases: list[float] = []

        def variant(key: str, recipe: Mapping[str, Any]) -> RopeVariant:
            base = self._base(key, recipe, notes)
            if base is not None:
                bases.append(base)
            scaling = read_scaling(
                key,
                recipe,
                max_length=self.max_position_embeddings,
                original_length=original_length,
                dynamic_ntk=dynamic_ntk,
            )
            try:
                return RopeVariant(base=base or default_theta, width=width, scaling=scaling, layout=layout)
            except PlanError as error:
                raise ConfigError(f"{key}: {error}; the width comes from {width_key}") from error

        readings = {
            key: {kind: variant(key + (f".{kind}" if kind else ""), recipe) for kind, recipe in group.items()}
            for key, group in groups.items()
        } or {"rope_theta": {FLAT: variant("rope_theta", {})}}
        key, chosen = next(iter(readings.items()))
        if any(reading != chosen for reading in readings.values()):
            raise ConfigError(
                f"rope_parameters ({shown(self.rope_parameters)}) and rope_scaling "
                f"({shown(self.rope_scaling)}) state different recipes; keep the one that the model was "
                "trained with"
            )
        scalings = [variant.scaling for variant in chosen.values()]
        notes += [_dynamic_note(key, scaling) for scaling in scalings if isinstance(scaling, DynamicScaling)]
        return RopeSpelling(key, chosen, bool(bases), tuple(dict.fromkeys(notes)))

    def _base(self, key: str, recipe: Mapping[str, Any], notes: list[str]) -> float | None:
        inner = recipe.get("rope_theta")
        if inner is None:
            return self.rope_theta
        if isinstance(inner, bool) or not isinstance(inner, int | float) or not 1 < inner <= LARGEST_BASE:
            raise ConfigError(
                f"{key}.rope_theta is {shown(inner)}; a number between 1 and {LARGEST_BASE:g} is expected"
            )
        if self.rope_theta is not None and inner != self.rope_theta:
            notes.append(
                f"rope_theta is {self.rope_theta} at the top level and {inner} in {key}; "
                f"{inner} is used, as transformers does"
            )
        return float(inner)


def _dynamic_note(key: str, scaling: DynamicScaling) -> str:
    original, frozen = scaling.original_length, scaling.frozen_length
    if frozen is None:
        return (
            f"{key} is dynamic: up to {original} tokens that is plain RoPE, and more are refused, since each "
            "length would have a base of its own, which contradicts keys cached under another; the option "
            "dynamic_ntk=frozen goes on with one base"
        )
    return (
        f"{key} is dynamic and frozen at the base of {frozen} tokens, for shorter sequences too "
        "(transformers changes the base with the length)"
    )


def _by_layer_type(key: str, value: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """Tell one recipe from one a layer type."""
    nested = [inner for inner in value.values() if isinstance(inner, dict)]
    if not nested:
        return {FLAT: value}
    if len(nested) != len(value) or FLAT in value:
        raise ConfigError(f"{key} mixes keys of one recipe with recipes of layer types: {shown(value)}")
    return value
