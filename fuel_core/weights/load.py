"""Filling a model from a checkpoint: every parameter once, every tensor used or excused by name."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from fuel_core.blocks.decoder import Decoder
from fuel_core.config.stored_blocks import StoredBlocks
from fuel_core.errors import CheckpointError, FuelWarning, PlanError
from fuel_core.weights.block_scaled import BlockScales, is_block_scaled
from fuel_core.weights.checkpoint import Checkpoint
from fuel_core.weights.names import Source, WeightNames, sources
from fuel_core.weights.progress import Progress
from fuel_core.weights.safetensors_file import TensorInfo

_PREFIX = "model."


def fit_names(names: WeightNames, stored: Mapping[str, TensorInfo]) -> WeightNames:
    """Drop the prefix ``model.`` from a family's names when a checkpoint was saved without it."""
    if any(name.startswith(_PREFIX) for name in stored):
        return names
    bare = {block: template.removeprefix(_PREFIX) for block, template in names.modules.items()}
    excused = tuple(pattern.removeprefix(_PREFIX) for pattern in names.excused)
    return replace(names, modules=bare, excused=excused)


def settle_head(names: WeightNames, checkpoint: Checkpoint, tied: bool) -> tuple[WeightNames, bool]:
    """Decide where the output head comes from, given what the config says and what is stored.

    A tied model whose checkpoint holds a head that differs keeps that head, with a warning, as
    transformers 5 does; one that stores the head alone uses it for both.

    Returns:
        The names to load with, and whether the head is tied.

    Raises:
        CheckpointError: the config says that the head is its own, and there is none.
    """
    embed, head = names.modules["embed"] + ".weight", names.modules["head"] + ".weight"
    stored = checkpoint.tensors
    if not tied:
        if head not in stored and embed in stored:
            raise CheckpointError(
                f"{checkpoint.folder} holds no {head}, but its config has tie_word_embeddings false; if the "
                "model does share its embeddings with the head, set tie_word_embeddings to true in "
                "config.json"
            )
        return names, False
    if head not in stored:
        return names, True
    if embed not in stored:
        return replace(names, modules={**names.modules, "embed": names.modules["head"]}), True
    excused = replace(names, excused=(*names.excused, head))
    if _equal(checkpoint, embed, head):
        return excused, True
    warnings.warn(
        f"{checkpoint.folder}: tie_word_embeddings is true, but {head} differs from {embed}; the stored head "
        "is used, not tied",
        FuelWarning,
        stacklevel=2,
    )
    return names, False


def _equal(checkpoint: Checkpoint, first: str, second: str) -> bool:
    infos = [checkpoint.tensors[name] for name in (first, second)]
    if infos[0].dtype != infos[1].dtype:  # torch compares no tensors of two dtypes
        return False
    files = {info.file for info in infos}
    shards = {shard.path: shard for shard in checkpoint.shards if shard.path in files}
    try:
        return torch.equal(*(shards[info.file].tensor(info.name) for info in infos))
    finally:
        for shard in shards.values():
            shard.close()


def load_weights(
    decoder: Decoder,
    checkpoint: Checkpoint,
    names: WeightNames,
    device: torch.device,
    progress: Progress | None = None,
    blocks: StoredBlocks | None = None,
    further_layers: int = 0,
) -> None:
    """Fill a model that stands on the meta device.

    Everything is checked by the files' headers before the first allocation. Peak memory is the model
    and one shard.

    Args:
        progress: told of the stored bytes that are in place.
        blocks: how the config says that matrices of 8-bit floats are scaled.
        further_layers: how many layers the config states beyond the model's own.

    Raises:
        CheckpointError: parameters without a tensor, tensors without a use, or shapes that differ.
        PlanError: the family names one tensor for two parameters.
    """
    wanted: dict[str, Source] = {}
    for source in sources(decoder, names):
        if source.tensor in wanted:
            raise PlanError(
                f"the family's weights name {source.tensor} for both {wanted[source.tensor].path} and "
                f"{source.path}"
            )
        wanted[source.tensor] = source
    scales = BlockScales.of(checkpoint, blocks)
    further = range(len(decoder.layers), len(decoder.layers) + further_layers)
    _account(checkpoint, wanted, names, further, scales)
    factors = checkpoint.copies(info.name for info in scales.infos.values()) if scales else {}
    weights = decoder.plan.numerics.weights
    filled: dict[tuple[nn.Module, str], Tensor] = {}
    done = 0
    report = progress or (lambda task, done_bytes, total_bytes: None)
    report("loading", 0, checkpoint.total_bytes)
    for name, tensor in checkpoint:
        done += checkpoint.tensors[name].nbytes
        report("loading", done, checkpoint.total_bytes)
        place = wanted.get(name)
        if place is None:
            continue
        key = (place.module, place.parameter)
        if key not in filled:
            shape = place.module.get_parameter(place.parameter).shape
            filled[key] = torch.empty(shape, dtype=place.rule.dtype(weights), device=device)
        into = filled[key][place.piece.place]
        if scales is not None and is_block_scaled(checkpoint.tensors[name]):
            scales.dequantise(tensor, factors[scales.infos[name].name], into)
        else:
            into.copy_(tensor)
    for (module, parameter), value in filled.items():
        setattr(module, parameter, nn.Parameter(value, requires_grad=False))
    decoder.weights_replaced()


def _account(
    checkpoint: Checkpoint,
    wanted: Mapping[str, Source],
    names: WeightNames,
    further: range,
    scales: BlockScales | None,
) -> None:
    stored = checkpoint.tensors
    missing = [f"{name} (for {source.path})" for name, source in wanted.items() if name not in stored]
    used = set(wanted)
    if scales is not None:
        scaled = {name for name in wanted if name in stored and is_block_scaled(stored[name])}
        used |= {info.name for name, info in scales.infos.items() if name in scaled}
    unused = [name for name in stored if name not in used and not names.excuses(name, further)]
    faults = _list("parameters have no tensor", missing) + _list("tensors have no use", unused)
    if faults:
        raise CheckpointError(
            f"{checkpoint.folder} does not hold the model that its config.json describes:\n{faults}"
            "check that config.json and weights belong together"
        )
    for name, source in wanted.items():
        info = stored[name]
        if info.shape != source.shape:
            raise CheckpointError(
                f"{info.file} holds {name} of shape {list(info.shape)}; {source.path} needs "
                f"{list(source.shape)} by config.json"
            )
        if scales is not None and is_block_scaled(info):
            scales.check(info)
        elif not info.dtype.is_floating_point or info.dtype.itemsize < 2:
            raise CheckpointError(
                f"{info.file} holds {name} as {info.dtype}, a quantised form that config.json does not "
                "explain"
            )


def _list(what: str, names: Sequence[str], most: int = 8) -> str:
    if not names:
        return ""
    shown = [*names[:most], *([f"and {len(names) - most} more"] if len(names) > most else [])]
    return f"  {len(names)} {what}:\n" + "".join(f"    {name}\n" for name in shown)
