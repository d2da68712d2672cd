"""The base of every family's config: strict, frozen, with a ledger of all keys."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError, model_validator

from fuel_core.config.ledger import ANY_VALUE, IRRELEVANT, Fate, Ledger, Neutral
from fuel_core.config.shown import shown
from fuel_core.config.stored_blocks import StoredBlocks
from fuel_core.errors import ConfigError
from fuel_core.plans.cache_spec import CacheSpec
from fuel_core.plans.mask import MaskPlan
from fuel_core.plans.model_plan import LayerPlan, ModelPlan, NormPlan
from fuel_core.plans.rope import RopePlan


class _NullIsAbsent:
    """The type of NULL_IS_ABSENT."""


NULL_IS_ABSENT = _NullIsAbsent()
"""Annotates a key whose ``null`` means what its absence means. Elsewhere null is a value or an error."""

DTYPE_NAMES = frozenset({"float64", "float32", "bfloat16", "float16"})

LARGEST_SIZE = 2**31 - 1
"""No size that a config states is larger: a product of two then counts elements within int64."""

MOST_LAYERS = 10_000
"""Far beyond any published model. Plans hold an entry a layer, so a misread count must not reach them."""


class FamilyConfig(BaseModel):
    """The keys of a config.json that a model reads, under the names of the file.

    A subclass states each key as a field. The field's default is what *absent* means; ``null`` is
    refused unless the type admits it or ``NULL_IS_ABSENT`` annotates it. A default that depends on
    other keys is a ``default_factory`` that takes the keys read before it.

    ``irrelevant`` names further keys that this family passes over: the values at which they change
    nothing, or ``ANY_VALUE``.
    """

    model_config = ConfigDict(
        frozen=True, strict=True, allow_inf_nan=False, extra="forbid", validate_default=True
    )

    irrelevant: ClassVar[Mapping[str, Neutral]] = {}

    vocab_size: PositiveInt
    hidden_size: PositiveInt
    num_hidden_layers: Annotated[int, Field(gt=0, le=MOST_LAYERS)]
    max_position_embeddings: PositiveInt
    tie_word_embeddings: bool = False
    dtype: Annotated[str | None, NULL_IS_ABSENT] = None
    torch_dtype: Annotated[str | None, NULL_IS_ABSENT] = None
    quantization_config: Annotated[dict[str, Any] | None, NULL_IS_ABSENT] = None

    @classmethod
    def read(
        cls, raw: Mapping[str, Any], *, source: str, allow_unknown_keys: bool = False
    ) -> tuple[Self, Ledger]:
        """Read the content of a config.json.

        Args:
            raw: the parsed object.
            source: where it comes from, for messages.
            allow_unknown_keys: go on when a key is refused; the ledger still says so.

        Raises:
            ConfigError: a key that nothing understands, a value of the wrong type or range, or
                values that contradict each other.
        """
        ledger = Ledger.open(raw, frozenset(cls.model_fields), {**IRRELEVANT, **cls.irrelevant})
        refused = ledger.of(Fate.REFUSED)
        if refused and not allow_unknown_keys:
            keys = "\n".join(f"  {entry.key}: {entry.reason}" for entry in refused)
            raise ConfigError(
                f"{source} holds keys that are not understood, so the model could run wrongly:\n{keys}\n"
                "If you know that they do not matter, load with allow_unknown_keys=True "
                "(--allow-unknown-keys)"
            )
        known = {key: value for key, value in raw.items() if key in cls.model_fields}
        try:
            return cls.model_validate(cls._without_empty_nulls(known)), ledger
        except ValueError as error:  # pydantic's own, or one that a default_factory raised
            raise ConfigError(f"{source}: {_explain(error)}") from error

    @classmethod
    def _without_empty_nulls(cls, known: dict[str, Any]) -> dict[str, Any]:
        return {
            key: value
            for key, value in known.items()
            if value is not None or NULL_IS_ABSENT not in cls.model_fields[key].metadata
        }

    @model_validator(mode="after")
    def _check_sizes(self) -> Self:
        for key in sorted(self.model_fields_set):
            value = getattr(self, key)
            if isinstance(value, int) and value > LARGEST_SIZE:
                raise ValueError(f"{key} is {shown(value)}; at most {LARGEST_SIZE} is expected")
        return self

    @model_validator(mode="after")
    def _check_dtypes(self) -> Self:
        names = {key: self._dtype_name(key) for key in ("dtype", "torch_dtype")}
        stated = {key: name for key, name in names.items() if name is not None}
        if len(set(stated.values())) > 1:
            raise ValueError(f"dtype says {stated['dtype']}, torch_dtype says {stated['torch_dtype']}")
        return self

    @model_validator(mode="after")
    def _check_quantisation(self) -> Self:
        try:
            assert self.stored_blocks is None or self.quantization_config
        except ConfigError as error:
            raise ValueError(str(error)) from error
        return self

    def _dtype_name(self, key: str) -> str | None:
        stated: str | None = {"dtype": self.dtype, "torch_dtype": self.torch_dtype}[key]
        if stated is None or stated == "auto":
            return None
        name = stated.removeprefix("torch.")
        if name not in DTYPE_NAMES:
            raise ValueError(f"{key} is {shown(stated)}; known are {', '.join(sorted(DTYPE_NAMES))}")
        return name

    @property
    def stored_dtype(self) -> str | None:
        """The dtype that the config states, as torch names it; None when it states none."""
        return self._dtype_name("dtype") or self._dtype_name("torch_dtype")

    @property
    def stored_blocks(self) -> StoredBlocks | None:
        """How matrices are stored that are 8-bit floats; None when none is."""
        stated = self.quantization_config
        return None if stated is None else StoredBlocks.read(stated)

    @property
    def further_layers(self) -> int:
        """How many layers a checkpoint may store beyond ``num_hidden_layers``; they are not loaded."""
        return 0

    def model_plan(
        self,
        family: str,
        *,
        norm: NormPlan,
        layers: Sequence[LayerPlan],
        mask: MaskPlan,
        rope: RopePlan,
        cache: CacheSpec,
        notes: Sequence[str],
        embed_scale: float | None = None,
        head_bias: bool = False,
    ) -> ModelPlan:
        """The plan of a model whose sizes are this config's; the arguments are those of ModelPlan."""
        blocks = self.stored_blocks
        stored = (
            []
            if blocks is None
            else [
                f"matrices stored as 8-bit floats in blocks of {blocks.rows} x {blocks.columns} are "
                "dequantised as they are loaded"
            ]
        )
        return ModelPlan(
            family=family,
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            max_positions=self.max_position_embeddings,
            norm=norm,
            tied=self.tie_word_embeddings,
            embed_scale=embed_scale,
            head_bias=head_bias,
            layers=tuple(layers),
            mask=mask,
            rope=rope,
            cache=cache,
            notes=(*stored, *notes),
        )


def _explain(error: ValueError) -> str:
    """Each fault with its key and what was found."""
    if not isinstance(error, ValidationError):
        return str(error)
    lines = []
    for fault in error.errors(include_url=False):
        key = ".".join(str(part) for part in fault["loc"])
        message = fault["msg"].removeprefix("Value error, ")
        if fault["type"] == "default_factory_not_called":
            continue  # follows from a fault that is named already
        if fault["type"] == "missing":
            lines.append(f"{key} is missing")
        elif key:
            lines.append(f"{key} is {shown(fault['input'])}: {message}")
        else:
            lines.append(message)
    return "; ".join(lines)


__all__ = ["ANY_VALUE", "DTYPE_NAMES", "LARGEST_SIZE", "MOST_LAYERS", "NULL_IS_ABSENT", "FamilyConfig"]
