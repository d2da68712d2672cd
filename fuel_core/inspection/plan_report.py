"""A model before its weights: who reads it, its plan, its parameters, the bytes that it will take."""

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fuel_core.blocks.decoder import Decoder
from fuel_core.cache import CachePool
from fuel_core.discovery import Plugin
from fuel_core.errors import CapacityError, RequestError
from fuel_core.inspection.layer_kinds import LayerKind
from fuel_core.inspection.plain_data import described, plain
from fuel_core.loading import ConfigReading, default_device, locate, read_config
from fuel_core.plans.cache_spec import LatentSlots
from fuel_core.plans.model_plan import ModelPlan
from fuel_core.plans.rope import RopeVariant
from fuel_core.registry import Registry
from fuel_core.weights.hub import CONFIG_FILE, download_config

SWITCH_POLICY = (
    "longer sequences use the second table; a row that crosses is prefilled again once, by itself, so that "
    "every step equals a fresh pass over its tokens"
)
"""What a decode session does where a recipe has two tables."""


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """What the parameters of a model amount to.

    Attributes:
        count: how many numbers; a head that is the embedding table counts once.
        bytes: the bytes that they take, by the name of the dtype in which they are held.
    """

    count: int
    bytes: Mapping[str, int]

    @classmethod
    def of(cls, decoder: Decoder) -> "Parameters":
        """Count those of a model, which may stand on the meta device."""
        weights = decoder.plan.numerics.weights
        count, held = 0, Counter[str]()
        for module in decoder.modules():
            for name, parameter in module.named_parameters(recurse=False):
                rules = module.weight_rules
                assert isinstance(rules, Mapping), f"{type(module).__name__} declares no weight rules"
                dtype = rules[name].dtype(weights)
                count += parameter.numel()
                held[plain(dtype)] += parameter.numel() * dtype.itemsize
        return cls(count=count, bytes=dict(held))


@dataclass(frozen=True, kw_only=True)
class PlanReport:
    """What is known of a model before any weight file is opened.

    Attributes:
        plugin: who reads it.
        reading: the config.json, as that plugin's family reads it.
        plan: the model, numerics resolved for ``device``.
        parameters: counted on the meta device.
        context, rows: the tokens of a sequence, and the sequences, that ``cache`` is sized for.
        notes: what a user should know.
    """

    plugin: Plugin
    reading: ConfigReading
    plan: ModelPlan
    parameters: Parameters
    context: int
    rows: int
    notes: tuple[str, ...]

    @property
    def cache(self) -> dict[str, int]:
        """The cache in bytes: of a token, of all rows at ``context`` tokens, and as a pool allocates it.

        ``expanded_bytes_per_token`` is what keys and values would take where latents are cached.
        """
        pool = CachePool(
            self.plan.cache,
            rows=self.rows,
            capacity=self.context,
            dtype=self.plan.numerics.cache,
            device="meta",
        )
        return {
            "bytes_per_token": pool.bytes_per_token,
            "expanded_bytes_per_token": self._expanded_elements * self.plan.numerics.cache.itemsize,
            "context": self.context,
            "rows": self.rows,
            "bytes": pool.bytes_per_token * self.context * self.rows,
            "allocated_bytes": pool.bytes,
        }

    @property
    def _expanded_elements(self) -> int:
        layers = zip(self.plan.layers, self.plan.cache.layers, strict=True)
        return sum(
            parts.mixer.expanded_elements if isinstance(slots, LatentSlots) else slots.elements
            for parts, slots in layers
        )

    def as_dict(self) -> dict[str, Any]:
        """This report for JSON. Keys are added over time, and never change their meaning:

        ``family``          the family's name
        ``plugin``          ``distribution`` and ``version`` of the plugin that provides it
        ``source``          the config.json that was read
        ``config``          each key that the family reads, with its value; the default where it is absent
        ``options``         the family's options
        ``model``           the scalars of the plan
        ``numerics``        the dtypes of ``weights``, ``activations`` and ``cache``
        ``layers``          one entry a layer: ``layer``, ``window`` (null: none), ``rope`` (the number of
                            its recipe, null: none), ``slots``, ``cache_bytes_per_token``, ``mixer``,
                            ``feed_forward``; the parts with ``kind``, ``text`` and their fields;
                            ``parallel``: both parts read the layer's input
        ``mask``            the distinct ``windows``, and the number of the one that each layer uses
        ``rope``            the recipes in ``variants``: ``base``, ``width``, ``layout``, ``scaling`` (its
                            ``kind`` and numbers), ``magnitudes`` (one a regime); ``per_layer``; ``switch``,
                            null where one table serves all, else the longest ``length`` of the first table
                            and the ``policy`` beyond
        ``cache``           ``bytes_per_token``, and ``expanded_bytes_per_token``: what keys and values
                            would take where latents are cached; ``bytes`` of ``rows`` sequences of
                            ``context`` tokens; ``allocated_bytes``, which counts the spare row of a pool
        ``parameters``      ``count``, and ``bytes`` by dtype
        ``ledger``          each key of the file: ``key``, ``value``, ``fate`` (used, irrelevant, refused),
                            ``reason``
        ``notes``           what a user should know
        ``position_limit``  the tokens that one sequence may hold
        """
        plan = self.plan
        return {
            "family": self.reading.family.name,
            "plugin": {"distribution": self.plugin.distribution, "version": self.plugin.version},
            "source": str(self.reading.path),
            "config": plain(self.reading.config.model_dump()),
            "options": plain(self.reading.options),
            "model": model_scalars(plan),
            "numerics": plain(plan.numerics),
            "layers": [layer_entry(plan, layer) for layer in range(len(plan.layers))],
            "mask": plain(plan.mask),
            "rope": {
                "variants": [recipe(variant) for variant in plan.rope.variants],
                "per_layer": list(plan.rope.per_layer),
                "switch": None
                if plan.switch_length is None
                else {"length": plan.switch_length, "policy": SWITCH_POLICY},
            },
            "cache": self.cache,
            "parameters": plain(self.parameters),
            "ledger": [
                {
                    "key": entry.key,
                    "value": plain(entry.value),
                    "fate": entry.fate.value,
                    "reason": entry.reason,
                }
                for entry in self.reading.ledger
            ],
            "notes": list(self.notes),
            "position_limit": plan.position_limit,
        }


def model_scalars(plan: ModelPlan) -> dict[str, Any]:
    """The numbers and switches that a plan states once for the whole model."""
    return {
        "layers": len(plan.layers),
        "vocab_size": plan.vocab_size,
        "hidden_size": plan.hidden_size,
        "max_positions": plan.max_positions,
        "norm": plan.norm.kind,
        "norm_eps": plan.norm.eps,
        "tied": plan.tied,
        "embed_scale": plan.embed_scale,
        "head_bias": plan.head_bias,
    }


def layer_entry(plan: ModelPlan, layer: int) -> dict[str, Any]:
    """One layer for JSON; see :meth:`PlanReport.as_dict`."""
    kind = LayerKind.of(plan, layer)
    return {
        "layer": layer,
        "window": kind.window,
        "rope": kind.rope,
        "slots": described(kind.slots),
        "cache_bytes_per_token": kind.slots.elements * plan.numerics.cache.itemsize,
        "mixer": described(kind.parts.mixer),
        "feed_forward": described(kind.parts.feed_forward),
        "parallel": kind.parts.parallel,
    }


def recipe(variant: RopeVariant) -> dict[str, Any]:
    """One RoPE recipe for JSON; see :meth:`PlanReport.as_dict`."""
    return {
        **plain(variant),
        "scaling": {"kind": variant.scaling.kind, **plain(variant.scaling)},
        "magnitudes": list(variant.scaling.magnitudes),
    }


def read_report(
    registry: Registry,
    ref: str,
    *,
    dtype: str | None = None,
    options: Mapping[str, Any] | None = None,
    allow_unknown_keys: bool = False,
    revision: str | None = None,
    context: int | None = None,
    rows: int = 1,
) -> PlanReport:
    """Report on what a reference names, opening its config.json and nothing else.

    Args:
        ref: as for :func:`fuel_core.loading.load`, or a config.json under any name. Of a hub
            repository the config.json alone is fetched.
        dtype, options, allow_unknown_keys, revision: as for ``load``.
        context: tokens of a sequence; by default as many as the model has positions.
        rows: sequences at once.

    Raises:
        FuelError: as ``load``, for all that can go wrong before a weight file is opened.
        CapacityError: more tokens than the model has positions.
    """
    reading = read_config(
        registry,
        locate_config(registry, ref, revision),
        options=options,
        allow_unknown_keys=allow_unknown_keys,
    )
    limit = reading.plan.position_limit
    if context is not None and context > limit:
        raise CapacityError(
            f"{reading.family.name}: a context of {context} tokens exceeds the {limit} positions that this "
            "model has"
        )
    numerics = reading.numerics(dtype=dtype, cache_dtype=None, stored=torch.float32, device=default_device())
    notes = reading.notes
    if dtype is None and reading.config.stored_dtype is None:
        notes += ("config.json states no dtype: float32 is assumed here; a load takes that of the weights",)
    return PlanReport(
        plugin=registry.provider(registry.card_for_model_type(reading.raw["model_type"])),
        reading=reading,
        plan=reading.plan.with_numerics(numerics),
        parameters=Parameters.of(reading.build(numerics)),
        context=limit if context is None else context,
        rows=rows,
        notes=notes,
    )


def locate_config(registry: Registry, ref: str, revision: str | None = None) -> Path:
    """The config.json that a reference names. As everywhere, an installed family's name comes first.

    Raises:
        RequestError: a revision of what is not on the hub.
    """
    path = os.path.expanduser(ref)
    is_file = os.path.isfile(path) or (path.endswith(".json") and not os.path.isdir(path))
    if not is_file or ref.partition(":")[0] in registry.names:
        return locate(registry, ref, fetch=download_config, revision=revision) / CONFIG_FILE
    if revision is not None:
        raise RequestError(f"{ref!r} is a file, so it has no revision {revision!r}")
    return Path(path)
