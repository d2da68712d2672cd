"""Writing a model as a checkpoint folder in the published layout of its family."""

import json
import os
import shutil
import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from fuel_core.blocks.decoder import Decoder
from fuel_core.errors import FuelWarning, RequestError
from fuel_core.weights.hub_files import companions
from fuel_core.weights.names import WeightNames, sources


def save_checkpoint(
    folder: Path,
    decoder: Decoder,
    names: WeightNames,
    config: Mapping[str, Any],
    *,
    dtype: torch.dtype | None = None,
) -> None:
    """Write ``config.json`` and ``model.safetensors``; each file replaces an older one whole.

    Args:
        folder: made if absent.
        names: the family's tensor names, ``family.weights``.
        config: the content of config.json; its dtype is set to what is stored, under the key it uses, and
            no quantisation is stated.
        dtype: of all stored tensors; None stores each parameter in the dtype that it has.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise RequestError(f"{folder} is a file; name a folder to save in") from error
    tensors = {}
    for source in sources(decoder, names):
        value = source.module.get_parameter(source.parameter).detach()[source.piece.place]
        # a clone: safetensors refuses views that share storage
        tensors[source.tensor] = value.to("cpu", dtype or value.dtype, copy=True).contiguous()
    stored = dtype or decoder.embed.weight.dtype
    key = "dtype" if "dtype" in config else "torch_dtype"
    # matrices that were 8-bit floats have been dequantised
    stale = ("dtype", "torch_dtype", "quantization_config")
    content = {name: value for name, value in config.items() if name not in stale}
    content[key] = str(stored).removeprefix("torch.")
    _replace(folder / "config.json", lambda path: path.write_text(json.dumps(content, indent=2) + "\n"))
    _replace(folder / "model.safetensors", lambda path: save_file(tensors, path, metadata={"format": "pt"}))


def copy_companions(source: Path, folder: Path) -> None:
    """Copy what a checkpoint holds beside config.json and weights: tokenizer, generation_config.json, chat
    templates. Each replaces an older one whole; one that only ``folder`` has is left and warned of."""
    if folder.samefile(source):
        return
    copied = companions(source)
    for name in sorted(copied):
        (folder / name).parent.mkdir(exist_ok=True)
        _replace(folder / name, partial(shutil.copyfile, source / name))
    strange = companions(folder) - copied
    if strange:
        warnings.warn(
            f"{folder} holds {', '.join(sorted(strange))}, which the model's own folder {source} does not: "
            "remove what belongs to another model",
            FuelWarning,
            stacklevel=3,
        )


def _replace(path: Path, write: Any) -> None:
    """Write beside ``path`` and move into place, so that a cut never leaves half a file."""
    partial = path.with_name(path.name + ".partial")
    partial.touch()
    rights = partial.stat().st_mode
    write(partial)
    partial.chmod(rights)  # those of new files here: safetensors' own are the owner's alone
    os.replace(partial, path)
