"""One RoPE recipe of a config.json: its kind, its keys, the scaling that they state."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fuel_core.config.family_config import LARGEST_SIZE
from fuel_core.config.rope_options import DynamicNTK
from fuel_core.config.shown import shown
from fuel_core.errors import ConfigError, PlanError
from fuel_core.plans.scaling import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    NoScaling,
    Scaling,
    YarnScaling,
)

_KIND_KEYS = ("rope_type", "type")
_SHARED_KEYS = frozenset({*_KIND_KEYS, "rope_theta"})

_SMALLEST, _LARGEST = 1e-6, 1e6
"""The bounds of a number: beyond any published recipe, and such that every table is finite."""


def read_scaling(
    key: str,
    recipe: Mapping[str, Any],
    *,
    max_length: int,
    original_length: int | None,
    dynamic_ntk: DynamicNTK = "refused",
) -> Scaling:
    """Read the scaling that a recipe states.

    Args:
        key: where the recipe stands in config.json, for messages.
        recipe: the dict of that key.
        max_length: ``max_position_embeddings``, in tokens.
        original_length: a trained context stated outside the recipe, in tokens.
        dynamic_ntk: the user's choice; see :class:`fuel_core.config.RopeOptions`.

    Raises:
        ConfigError: an unknown kind, a missing, unknown or ill-typed key, or two kinds.
    """
    kinds = {name: recipe[name] for name in _KIND_KEYS if recipe.get(name) is not None}
    if len(set(map(shown, kinds.values()))) > 1:
        raise ConfigError(
            f"{key} states two kinds: {shown(kinds)}; keep the one that the model was trained with"
        )
    kind = next(iter(kinds.values()), None)
    if kind is None and set(recipe) - _SHARED_KEYS:
        raise ConfigError(f"{key} states no rope_type, so its keys {sorted(recipe)} have no meaning")
    keys = _Keys(key, recipe, max_length, original_length, dynamic_ntk)
    reader = _READERS.get(kind if isinstance(kind, str) else "") if kind is not None else _plain
    if reader is None:
        raise ConfigError(f"{key}.rope_type is {shown(kind)}; known are {', '.join(sorted(_READERS))}")
    try:
        scaling = reader(keys)
    except PlanError as error:
        raise ConfigError(f"{key}: {error}") from error
    keys.refuse_rest(str(kind))
    return scaling


@dataclass
class _Keys:
    """The keys of one recipe; remembers which were asked for."""

    key: str
    recipe: Mapping[str, Any]
    max_length: int
    stated_original_length: int | None
    dynamic_ntk: DynamicNTK

    def __post_init__(self) -> None:
        self.asked = set(_SHARED_KEYS)

    def number(self, name: str, default: float | None = None) -> float:
        """A positive number; ``default`` when absent or null, or an error without one."""
        value = self.optional_number(name)
        if value is not None:
            return value
        if default is None:
            raise ConfigError(f"{self.key} needs {name}, which is absent")
        return default

    def optional_number(self, name: str, smallest: float = _SMALLEST) -> float | None:
        self.asked.add(name)
        value = self.recipe.get(name)
        if value is None:
            return None
        if not _is_number(value, smallest):
            raise ConfigError(
                f"{self.key}.{name} is {shown(value)}; a number between {smallest:g} and {_LARGEST:g} "
                "is expected"
            )
        return float(value)

    def switch(self, name: str, default: bool) -> bool:
        self.asked.add(name)
        value = self.recipe.get(name, default)
        if not isinstance(value, bool):
            raise ConfigError(f"{self.key}.{name} is {shown(value)}; true or false is expected")
        return value

    def numbers(self, name: str) -> tuple[float, ...]:
        self.asked.add(name)
        value = self.recipe.get(name)
        if not isinstance(value, list) or not all(_is_number(entry, _SMALLEST) for entry in value):
            raise ConfigError(
                f"{self.key}.{name} is {shown(value)}; a list of numbers between {_SMALLEST:g} and "
                f"{_LARGEST:g} is expected"
            )
        return tuple(float(entry) for entry in value)

    def original_length(self) -> int:
        """The trained context: the recipe's own, else the config's, else the whole context."""
        name = "original_max_position_embeddings"
        self.asked.add(name)
        own = self.recipe.get(name)
        if own is None:
            own, name = self.stated_original_length or self.max_length, "max_position_embeddings"
        # two tokens: of one, LongRoPE's magnitude would be a division by zero
        if isinstance(own, bool) or not isinstance(own, int) or not 2 <= own <= LARGEST_SIZE:
            raise ConfigError(
                f"{self.key}: {name} is {shown(own)}; a whole number of tokens from 2 to {LARGEST_SIZE} "
                "is expected"
            )
        return own

    def refuse_rest(self, kind: str) -> None:
        rest = sorted(set(self.recipe) - self.asked)
        if rest:
            raise ConfigError(
                f"{self.key} holds {', '.join(rest)}, which a recipe of kind {kind!r} does not have; "
                "remove what the model was not trained with"
            )


def _plain(keys: _Keys) -> Scaling:
    return NoScaling()


def _linear(keys: _Keys) -> Scaling:
    return LinearScaling(factor=keys.number("factor"))


def _dynamic(keys: _Keys) -> Scaling:
    factor, original = keys.number("factor"), keys.original_length()
    # a file that states no trained length apart gives it as its whole context, which the factor stretches
    longest = max(keys.max_length, int(factor * original))
    frozen = longest if keys.dynamic_ntk == "frozen" else None
    return DynamicScaling(factor=factor, original_length=original, frozen_length=frozen)


def _llama3(keys: _Keys) -> Scaling:
    return Llama3Scaling(
        factor=keys.number("factor"),
        low_freq_factor=keys.number("low_freq_factor"),
        high_freq_factor=keys.number("high_freq_factor"),
        original_length=keys.original_length(),
    )


def _yarn(keys: _Keys) -> Scaling:
    original = keys.original_length()
    return YarnScaling(
        # a null factor is the ratio of the contexts; an absent one is no recipe
        factor=keys.number("factor", keys.max_length / original if "factor" in keys.recipe else None),
        original_length=original,
        beta_fast=keys.number("beta_fast", 32.0),
        beta_slow=keys.number("beta_slow", 1.0),
        mscale=_or(keys.optional_number("mscale", smallest=0.0), 1.0),
        mscale_all_dim=_or(keys.optional_number("mscale_all_dim", smallest=0.0), 0.0),
        truncate=keys.switch("truncate", True),
        attention_factor=keys.optional_number("attention_factor"),
    )


def _longrope(keys: _Keys) -> Scaling:
    original = keys.original_length()
    factor = keys.number("factor", keys.max_length / original)
    published = LongRopeScaling.published_magnitude(factor, original)
    return LongRopeScaling(
        short_factor=keys.numbers("short_factor"),
        long_factor=keys.numbers("long_factor"),
        original_length=original,
        magnitude=keys.number("attention_factor", published),
        short_mscale=keys.optional_number("short_mscale"),
        long_mscale=keys.optional_number("long_mscale"),
    )


def _is_number(value: object, smallest: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and smallest <= value <= _LARGEST


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


_READERS: Mapping[str, Callable[[_Keys], Scaling]] = {
    "default": _plain,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "su": _longrope,  # the name in early Phi-3 files
}
