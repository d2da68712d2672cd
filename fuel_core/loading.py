"""``load``: from a reference to a model, nothing in the checkpoint ever executed."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from fuel_core.config import Fate, read_json_object
from fuel_core.errors import ConfigError, FuelWarning
from fuel_core.family import Family
from fuel_core.model import LanguageModel, family_options
from fuel_core.reference import Bundled, Folder, HubRepo, Preset
from fuel_core.registry import Registry
from fuel_core.weights.checkpoint import Checkpoint
from fuel_core.weights.hub import download
from fuel_core.weights.load import fit_names, load_weights, settle_head
from fuel_core.weights.numerics import dtype_of, resolve_numerics


def load(
    ref: str | Path,
    *,
    dtype: str | torch.dtype | None = None,
    cache_dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    options: Mapping[str, Any] | None = None,
    allow_unknown_keys: bool = False,
    registry: Registry | None = None,
) -> LanguageModel:
    """Load a model.

    Args:
        ref: an installed family's name (its bundled checkpoint), ``name:tag`` (a preset on the hub),
            a folder (``./x`` forces it), or a hub repository ``org/name``.
        dtype: of the weights; by default what config.json says, else what is stored.
        cache_dtype: of the cache; by default as the weights.
        device: by default the first CUDA device, else the CPU.
        options: what the family lets a user choose.
        allow_unknown_keys: load although config.json holds keys that nothing understands.
        registry: the plugins to use; by default those installed.

    Raises:
        UnknownFamily, FamilyClash, PluginError: no usable plugin reads this.
        ConfigError, CheckpointError: a file is missing, damaged or not understood.
        RequestError: an unknown dtype or option.
    """
    start = perf_counter()
    registry = Registry.discover() if registry is None else registry
    folder = locate(registry, ref)
    raw = read_json_object(folder / "config.json")
    family = family_of(registry, raw, folder)
    config, ledger = family.config.read(
        raw, source=str(folder / "config.json"), allow_unknown_keys=allow_unknown_keys
    )
    for entry in ledger.of(Fate.REFUSED):
        _warn(f"{folder / 'config.json'}: {entry.key} is passed over: {entry.reason}")

    checkpoint = Checkpoint.open(folder)
    names, tied = settle_head(
        fit_names(family.weights, checkpoint.tensors), checkpoint, config.tie_word_embeddings
    )
    config = config.model_copy(update={"tie_word_embeddings": tied})
    chosen = family_options(family, options)
    plan = family.plan(config, chosen)
    for note in plan.notes:
        _warn(f"{folder / 'config.json'}: {note}")

    on = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    numerics = resolve_numerics(
        requested=None if dtype is None else dtype_of(dtype),
        config=config.stored_dtype,
        stored=next(iter(checkpoint.tensors.values())).dtype,
        cache=None if cache_dtype is None else dtype_of(cache_dtype),
        device=on,
    )
    with torch.device("meta"):
        decoder = family.build(config, plan.with_numerics(numerics))
    load_weights(decoder, checkpoint, names, on)
    return LanguageModel(
        family=family,
        config=config,
        options=chosen,
        decoder=decoder.eval(),
        folder=folder,
        raw_config=raw,
        ledger=ledger,
        load_s=perf_counter() - start,
    )


def locate(registry: Registry, ref: str | Path) -> Path:
    """The folder that a reference names, downloaded if need be."""
    match registry.resolve(ref):
        case Bundled(card=card):
            return registry.bundled_folder(card)
        case Folder(path=path):
            return path
        case Preset(repo=repo) | HubRepo(repo=repo):
            return download(repo)


def family_of(registry: Registry, raw: Mapping[str, Any], folder: Path) -> Family:
    """The family that reads a config.json: its ``model_type`` alone decides.

    Raises:
        ConfigError: there is no model_type.
        UnknownFamily: no installed plugin claims it.
    """
    model_type = raw.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        raise ConfigError(
            f"{folder / 'config.json'} has model_type {model_type!r}; it must name the model's architecture"
        )
    return registry.definition(registry.card_for_model_type(model_type))


def _warn(message: str) -> None:
    warnings.warn(message, FuelWarning, stacklevel=3)
