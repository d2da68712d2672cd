"""Names of parts that the published tensors call otherwise."""

import torch
from torch import nn

from fuel_core.blocks import FusedLinear
from fuel_core.weights.names import WeightNames, sources


def stored(template: str, **parts: str) -> dict[str, tuple[slice | int, ...]]:
    with torch.device("meta"):
        model = nn.ModuleDict({"gate_up": FusedLinear(4, {"gate": 3, "up": 5}, bias=False)})
    names = WeightNames(modules={"gate_up": template}, excused=(), parts=parts)
    return {source.tensor: source.piece.place for source in sources(model, names)}


def test_a_part_has_its_own_name_or_another() -> None:
    gate, up = (slice(0, 3),), (slice(3, 8),)
    assert stored("mlp.{part}_proj") == {"mlp.gate_proj.weight": gate, "mlp.up_proj.weight": up}
    assert stored("mlp.{part}", gate="w1", up="w3") == {"mlp.w1.weight": gate, "mlp.w3.weight": up}
    assert stored("mlp.{part}", up="w3") == {"mlp.gate.weight": gate, "mlp.w3.weight": up}


def test_a_template_without_parts_names_one_tensor() -> None:
    assert stored("mlp.gate_up_proj", gate="w1", up="w3") == {"mlp.gate_up_proj.weight": ()}
