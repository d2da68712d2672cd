"""DeepSeek's checkpoints: experts by name and number, 8-bit blocks, layers that predict further tokens."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import fuel_core
from fuel_core.errors import CheckpointError, ConfigError
from fuel_core.family import Family
from fuel_core.registry import Registry
from fuel_core.testing import Case
from fuel_core.testing.checks import ORACLE_ABSOLUTE, assert_close, gap
from fuel_core.testing.oracle import TransformersOracle

BLOCKS = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [16, 32]}


@pytest.fixture
def family() -> Family:
    return Registry.discover().family("deepseek_v3")


@pytest.fixture
def saved(family: Family, tmp_path: Path) -> Callable[..., Path]:
    """Write the tiny V3, its tensors and its config changed as asked."""

    def write(change: Callable[[dict[str, Tensor]], object] = lambda tensors: None, **keys: Any) -> Path:
        folder = tmp_path / "checkpoint"
        Case.build(family, "groups", dtype=torch.float32).save(folder)
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors")
        raw = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**raw, **keys}))
        return folder

    return write


def quantise(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Store every projection as the format defines it; return what the stored numbers mean."""
    rows, columns = BLOCKS["weight_block_size"]
    meant = {}
    for name, weight in list(tensors.items()):
        if not name.endswith("_proj.weight") and "kv_a_proj" not in name:
            continue
        height, width = weight.shape
        scales = torch.zeros(-(-height // rows), -(-width // columns))
        stored = torch.zeros_like(weight)
        for i in range(scales.shape[0]):
            for j in range(scales.shape[1]):
                block = slice(i * rows, (i + 1) * rows), slice(j * columns, (j + 1) * columns)
                scales[i, j] = weight[block].abs().max() / 448
                stored[block] = weight[block] / scales[i, j]
        tensors[name] = stored.to(torch.float8_e4m3fn)
        tensors[f"{name}_scale_inv"] = scales
        spread = torch.kron(scales, torch.ones(rows, columns))
        meant[name] = tensors[name].float() * spread[:height, :width]
    return meant


def test_blocks_of_8_bits_are_dequantised(saved: Callable[..., Path]) -> None:
    """Blocks of 16 x 32 divide none of 20, 28, 40, 48 and 80: the last ones are cut, as the format has it."""
    meant: dict[str, Tensor] = {}
    folder = saved(lambda tensors: meant.update(quantise(tensors)), quantization_config=BLOCKS)
    with pytest.warns(UserWarning, match="8-bit floats in blocks of 16 x 32 are dequantised"):
        model = fuel_core.load(folder, dtype="float32")
    layer = model.decoder.layers[1]
    names = {
        "self_attn.kv_a_proj_with_mqa": layer.mixer.kv_a.weight,
        "self_attn.kv_b_proj": layer.mixer.kv_b.weight,
        "mlp.experts.11.gate_proj": layer.feed_forward.experts.gate_up.weight[11, :20],
        "mlp.experts.10.up_proj": layer.feed_forward.experts.gate_up.weight[10, 20:],
        "mlp.experts.2.down_proj": layer.feed_forward.experts.down.weight[2],
    }
    for name, parameter in names.items():
        assert torch.equal(parameter, meant[f"model.layers.1.{name}.weight"]), name
    assert len(meant) > 40, "vacuous: hardly anything was quantised"


def test_scales_in_another_shard_are_found(saved: Callable[..., Path]) -> None:
    folder = saved(lambda tensors: quantise(tensors), quantization_config=BLOCKS)
    whole = load_logits(folder)
    tensors = load_file(folder / "model.safetensors")
    shards = {
        "model-00001-of-00002.safetensors": {n: t for n, t in tensors.items() if "scale_inv" not in n},
        "model-00002-of-00002.safetensors": {n: t for n, t in tensors.items() if "scale_inv" in n},
    }
    (folder / "model.safetensors").unlink()
    for file, held in shards.items():
        save_file(held, folder / file)
    placement = {name: file for file, held in shards.items() for name in held}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placement}))
    assert torch.equal(load_logits(folder), whole)


def load_logits(folder: Path) -> Tensor:
    with pytest.warns(UserWarning, match="8-bit floats"):
        model = fuel_core.load(folder, dtype="float32")
    return model.forward([[1, 5, 9, 2, 40]])


@pytest.mark.filterwarnings("ignore:.*8-bit floats")
@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda t, name: t.pop(f"{name}_scale_inv"), "and no scales of it"),
        (
            lambda t, name: t.update({f"{name}_scale_inv": torch.ones(3, 3)}),
            r"scale_inv of shape \[3, 3\].*\[32, 48\] in blocks of 16 x 32 has \[2, 2\]",
        ),
        (
            lambda t, name: t.update({f"{name}_scale_inv": torch.ones(2, 2, dtype=torch.int32)}),
            "scale_inv as torch.int32; scales are floating",
        ),
        (lambda t, name: t.update({"model.layers.1.stray_scale_inv": torch.ones(1)}), "stray_scale_inv"),
        (lambda t, name: t.update({name: t[name].float()}), "kv_a_proj_with_mqa.weight_scale_inv"),
    ],
    ids=["missing", "of another shape", "whole numbers", "of nothing", "of no 8-bit matrix"],
)
def test_scales_that_do_not_fit(saved: Callable[..., Path], damage: Any, named: str) -> None:
    def change(tensors: dict[str, Tensor]) -> None:
        quantise(tensors)
        damage(tensors, "model.layers.1.self_attn.kv_a_proj_with_mqa.weight")

    with pytest.raises(CheckpointError, match=named):
        fuel_core.load(saved(change, quantization_config=BLOCKS))


def test_8_bits_that_the_config_does_not_explain(saved: Callable[..., Path]) -> None:
    folder = saved(lambda tensors: quantise(tensors))
    with pytest.raises(CheckpointError, match="scale_inv"):
        fuel_core.load(folder)


@pytest.mark.parametrize(
    ("stated", "named"),
    [
        ({"quant_method": "gptq", "bits": 4}, "method 'gptq'"),
        ({"quant_method": "fp8"}, "weight_block_size None"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, r"weight_block_size is \[128\]"),
        ({"quant_method": "fp8", "weight_block_size": [0, 128]}, r"weight_block_size is \[0, 128\]"),
        ({**BLOCKS, "kv_cache_scheme": "fp8"}, "kv_cache_scheme, which nothing in fuel reads"),
    ],
    ids=["another method", "no blocks", "one number", "empty blocks", "another key"],
)
def test_quantisations_that_are_not_read(family: Family, stated: dict[str, Any], named: str) -> None:
    raw = {**family.tiny["groups"], "quantization_config": stated}
    with pytest.raises(ConfigError, match=named):
        family.config.read(raw, source="config.json")


def test_layers_that_predict_further_tokens_are_excused(saved: Callable[..., Path]) -> None:
    """V3 stores such a layer after its own 61; it is no part of the plain model. Any other tensor that
    nothing uses is refused."""

    def predicting(layer: int) -> Callable[[dict[str, Tensor]], None]:
        names = (f"model.layers.{layer}.eh_proj.weight", f"model.layers.{layer}.shared_head.norm.weight")
        return lambda tensors: tensors.update({name: torch.ones(2) for name in names})

    model = fuel_core.load(saved(predicting(3), num_nextn_predict_layers=1))
    assert len(model.decoder.layers) == 3
    with pytest.raises(CheckpointError, match=r"model.layers.4.eh_proj.weight"):
        fuel_core.load(saved(predicting(4), num_nextn_predict_layers=1))
    with pytest.raises(CheckpointError, match=r"model.layers.3.eh_proj.weight"):
        fuel_core.load(saved(predicting(3), num_nextn_predict_layers=0))
    with pytest.raises(CheckpointError, match=r"model.layers.2.eh_proj.weight"):
        fuel_core.load(saved(predicting(2)))


def test_a_model_with_layers_too_few_is_no_model(tmp_path: Path) -> None:
    """Layers beyond the config's were excused whatever they were: a V2 cut short loaded without a word."""
    family = Registry.discover().family("deepseek_v2")
    Case.build(family, "plain-q", dtype=torch.float32).save(tmp_path)
    raw = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**raw, "num_hidden_layers": 2}))
    with pytest.raises(CheckpointError, match=r"model\.layers\.2"):
        fuel_core.load(tmp_path)


def test_further_layers_are_excused_without_the_prefix(saved: Callable[..., Path]) -> None:
    def bare(tensors: dict[str, Tensor]) -> None:
        for name in list(tensors):
            tensors[name.removeprefix("model.")] = tensors.pop(name)
        tensors["layers.3.eh_proj.weight"] = torch.ones(2)

    assert len(fuel_core.load(saved(bare)).decoder.layers) == 3


def test_what_was_dequantised_is_saved_as_such(saved: Callable[..., Path], tmp_path: Path) -> None:
    """A config that still spoke of 8 bits made other readers look for scales."""
    folder = saved(lambda tensors: quantise(tensors), quantization_config=BLOCKS)
    with pytest.warns(UserWarning, match="8-bit floats"):
        model = fuel_core.load(folder, dtype="float32")
    model.save(tmp_path / "again")
    assert "quantization_config" not in json.loads((tmp_path / "again" / "config.json").read_text())
    again = fuel_core.load(tmp_path / "again", dtype="float32")
    assert torch.equal(model.forward([[1, 5, 9]]), again.forward([[1, 5, 9]]))


def test_an_expert_that_is_missing_is_named(saved: Callable[..., Path]) -> None:
    name = "model.layers.2.mlp.experts.10.up_proj.weight"
    with pytest.raises(CheckpointError, match=name):
        fuel_core.load(saved(lambda tensors: tensors.pop(name)))


@pytest.mark.parametrize(
    ("name", "found", "needed"),
    [
        ("self_attn.kv_b_proj", r"\[95, 24\]", r"\[96, 24\]"),
        ("mlp.experts.11.down_proj", r"\[47, 20\]", r"\[48, 20\]"),
    ],
)
def test_a_tensor_of_another_shape_names_both(
    saved: Callable[..., Path], name: str, found: str, needed: str
) -> None:
    """W_UK and W_UV are views of one matrix: of another shape they would split in the wrong place."""

    def cut(tensors: dict[str, Tensor]) -> None:
        stored = f"model.layers.1.{name}.weight"
        tensors[stored] = tensors[stored][:-1].clone()

    with pytest.raises(CheckpointError, match=f"{name}.weight of shape {found}.* needs {needed}"):
        fuel_core.load(saved(cut))


@pytest.mark.parametrize("shift", [-1.2, 1.2])
def test_biases_far_from_zero_choose_within_the_best_groups(
    saved: Callable[..., Path], shift: float, family: Family
) -> None:
    """With negative choice scores, a passed-over expert at 0 in place of -inf would be the best."""

    def move(tensors: dict[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            if name.endswith("e_score_correction_bias"):
                tensor += shift

    folder = saved(move)
    tokens = Case.build(family, "groups").token_ids(seed=40)
    model = fuel_core.load(folder, dtype="float32")
    found = model.forward([tokens])[0]
    assert_close(found, TransformersOracle(folder).logits(tokens), ORACLE_ABSOLUTE, f"biases {shift:+}")
    plain = Case.build(family, "groups", dtype=torch.float32).one_shot(tokens)
    assert gap(found, plain) < 1e-3, "a shift of all biases changes no choice"
