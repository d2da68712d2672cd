"""``load``: from a reference to a model, nothing in the checkpoint ever executed."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from fuel_core.blocks.decoder import Decoder
from fuel_core.config import FamilyConfig, Fate, Ledger, read_json_object
from fuel_core.errors import CheckpointError, ConfigError, FuelWarning, PlanError, RequestError
from fuel_core.family import Family
from fuel_core.foreign_format import foreign_format
from fuel_core.model import LanguageModel, family_options
from fuel_core.plans.model_plan import ModelPlan, Numerics
from fuel_core.reference import Bundled, HubRepo, Preset
from fuel_core.registry import Registry
from fuel_core.weights.checkpoint import Checkpoint
from fuel_core.weights.hub import CONFIG_FILE, download
from fuel_core.weights.load import fit_names, load_weights, settle_head
from fuel_core.weights.numerics import dtype_of, resolve_numerics
from fuel_core.weights.progress import Progress


@dataclass(frozen=True, kw_only=True)
class ConfigReading:
    """A config.json as an installed family reads it: all that is decided before a weight file is opened.

    Attributes:
        path: the file.
        raw: its content.
        family, config, options: who read it, what was read, and with which choices.
        ledger: what became of each key.
        plan: the model; its numerics are not resolved yet.
    """

    path: Path
    raw: Mapping[str, Any]
    family: Family
    config: FamilyConfig
    options: Any
    ledger: Ledger
    plan: ModelPlan

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know: the keys that are passed over, and how the others were read."""
        refused = self.ledger.of(Fate.REFUSED)
        return (*(f"{entry.key} is passed over: {entry.reason}" for entry in refused), *self.plan.notes)

    def with_head(self, *, tied: bool) -> "ConfigReading":
        """The same reading once the weight files have settled whether head and embeddings are one."""
        if tied == self.config.tie_word_embeddings:
            return self
        config = self.config.model_copy(update={"tie_word_embeddings": tied})
        return replace(self, config=config, plan=self.family.plan(config, self.options))

    def numerics(
        self,
        *,
        dtype: str | torch.dtype | None,
        cache_dtype: str | torch.dtype | None,
        stored: torch.dtype,
        device: torch.device,
    ) -> Numerics:
        """The dtypes of this model; ``stored`` is that of the weights, for a config that states none.

        Raises:
            RequestError: an unknown dtype.
        """
        return resolve_numerics(
            requested=None if dtype is None else dtype_of(dtype),
            config=self.config.stored_dtype,
            stored=stored,
            cache=None if cache_dtype is None else dtype_of(cache_dtype),
            device=device,
        )

    def build(self, numerics: Numerics) -> Decoder:
        """The model on the meta device: every parameter's shape, and no memory."""
        with torch.device("meta"):
            return self.family.build(self.config, self.plan.with_numerics(numerics))


def load(
    ref: str | Path,
    *,
    dtype: str | torch.dtype | None = None,
    cache_dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    options: Mapping[str, Any] | None = None,
    allow_unknown_keys: bool = False,
    registry: Registry | None = None,
    revision: str | None = None,
    cache_dir: str | Path | None = None,
    token: str | bool | None = None,
    local_files_only: bool = False,
    progress: Progress | None = None,
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
        revision: the branch, tag or commit of a hub repository; by default its branch ``main``.
        cache_dir: where files of the hub are kept; by default the cache that all users of
            huggingface_hub share (``HF_HUB_CACHE``).
        token: whom the hub takes us for; by default who is logged in, False for nobody.
        local_files_only: never ask the hub, as ``HF_HUB_OFFLINE=1`` does.
        progress: told of the bytes of a download, then of loading.

    Raises:
        UnknownFamily, FamilyClash, PluginError: no usable plugin reads this.
        ConfigError, CheckpointError: a file is missing, damaged or not understood, or the hub does not
            give it.
        RequestError: an unknown dtype or option, or a revision of what is not on the hub.
    """
    start = perf_counter()
    on = default_device() if device is None else usable_device(device)
    registry = Registry.discover() if registry is None else registry
    fetch = partial(
        download, cache_dir=cache_dir, token=token, local_files_only=local_files_only, progress=progress
    )
    folder = locate(registry, ref, fetch=fetch, revision=revision)
    reading = read_config(
        registry, folder / CONFIG_FILE, options=options, allow_unknown_keys=allow_unknown_keys
    )

    checkpoint = Checkpoint.open(folder)
    names, tied = settle_head(
        fit_names(reading.family.weights, checkpoint.tensors), checkpoint, reading.config.tie_word_embeddings
    )
    reading = reading.with_head(tied=tied)
    for note in reading.notes:
        warnings.warn(f"{reading.path}: {note}", FuelWarning, stacklevel=2)

    numerics = reading.numerics(
        dtype=dtype,
        cache_dtype=cache_dtype,
        # the largest tensor: norms and biases are often stored wider than the matrices
        stored=max(checkpoint.tensors.values(), key=lambda info: info.nbytes).dtype,
        device=on,
    )
    decoder = reading.build(numerics)
    load_weights(
        decoder,
        checkpoint,
        names,
        on,
        progress,
        blocks=reading.config.stored_blocks,
        further_layers=reading.config.further_layers,
    )
    return LanguageModel(
        family=reading.family,
        config=reading.config,
        options=reading.options,
        decoder=decoder.eval(),
        folder=folder,
        raw_config=reading.raw,
        ledger=reading.ledger,
        load_s=perf_counter() - start,
    )


def read_config(
    registry: Registry,
    path: Path,
    *,
    options: Mapping[str, Any] | None = None,
    allow_unknown_keys: bool = False,
) -> ConfigReading:
    """Read a config.json and plan its model; nothing beside that file is opened.

    Raises:
        UnknownFamily, FamilyClash, PluginError: no usable plugin reads it.
        ConfigError: it is missing, damaged or not understood.
        RequestError: an unknown option.
    """
    if path.parent.is_dir() and not path.exists():
        names = [file.name for file in path.parent.iterdir()]
        raise ConfigError(f"{path} does not exist{foreign_format(names)}")
    raw = read_json_object(path)
    family = family_of(registry, raw, path)
    config, ledger = family.config.read(raw, source=str(path), allow_unknown_keys=allow_unknown_keys)
    chosen = family_options(family, options)
    try:
        plan = family.plan(config, chosen)
    except (ConfigError, PlanError) as error:
        error.args = (f"{path}: {error}",)
        raise
    return ConfigReading(
        path=path,
        raw=raw,
        family=family,
        config=config,
        options=chosen,
        ledger=ledger,
        plan=plan,
    )


def default_device() -> torch.device:
    """The first CUDA device, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def usable_device(device: str | torch.device) -> torch.device:
    """The device of a name.

    Raises:
        RequestError: there is no such device here.
    """
    try:
        named = torch.device(device)
        torch.empty(1, device=named)
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise RequestError(f"device {device!r} cannot be used here: {reason}") from error
    if named.type == "meta":
        raise RequestError(f"device {device!r} cannot be used here: its tensors hold no numbers")
    return named


def locate(
    registry: Registry,
    ref: str | Path,
    *,
    fetch: Callable[[str, str | None], Path],
    revision: str | None = None,
) -> Path:
    """The folder that a reference names; ``fetch(repo, revision)`` is asked for that of a hub repository.

    Raises:
        CheckpointError: the repository cannot be fetched.
        RequestError: a revision of what is not on the hub.
    """
    found = registry.resolve(ref)
    if isinstance(found, Preset | HubRepo):
        try:
            return fetch(found.repo, revision)
        except CheckpointError as error:
            if Path(ref).is_dir():  # perhaps that folder was meant, and lacks what makes it a checkpoint
                beside = f"there is a folder {ref}, without a config.json"
                known = foreign_format([file.name for file in Path(ref).iterdir()])
                raise CheckpointError(f"{error}; {beside}{known}") from error
            raise
    if revision is not None:
        raise RequestError(f"{str(ref)!r} is not on the hub, so it has no revision {revision!r}")
    return registry.bundled_folder(found.card) if isinstance(found, Bundled) else found.path


def family_of(registry: Registry, raw: Mapping[str, Any], path: Path) -> Family:
    """The family that reads a config.json: its ``model_type`` alone decides.

    Raises:
        ConfigError: there is no model_type.
        UnknownFamily: no installed plugin claims it.
    """
    model_type = raw.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        raise ConfigError(f"{path} has model_type {model_type!r}; it must name the model's architecture")
    return registry.definition(registry.card_for_model_type(model_type))
