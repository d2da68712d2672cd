"""A plan's data at addresses that a captured step may keep."""

from collections.abc import Iterator

from torch import Tensor

from fuel_core.errors import TopologyChanged
from fuel_core.rotary import RopeTable
from fuel_core.step import StepTables


def copy_of(tables: StepTables) -> StepTables:
    """The same data in tensors of its own."""
    return StepTables(
        tables.device,
        tuple(
            RopeTable(
                rope.inverse_frequencies.clone(),
                None if rope.magnitudes is None else rope.magnitudes.clone(),
                rope.layout,
            )
            for rope in tables.ropes
        ),
        tuple(window.clone() for window in tables.windows),
    )


def overwrite(static: StepTables, tables: StepTables) -> int:
    """Put other data of the same form in place; return how many tensors were copied.

    Raises:
        TopologyChanged: it has another form.
    """
    targets, sources = list(_tensors(static)), list(_tensors(tables))
    if [_form(tensor) for tensor in targets] != [_form(tensor) for tensor in sources]:
        raise TopologyChanged("the RoPE tables of this model have another form than those planned with")
    copied = 0
    for target, source in zip(targets, sources, strict=True):
        if target is not None and source is not None:
            target.copy_(source)
            copied += 1
    return copied


def _tensors(tables: StepTables) -> Iterator[Tensor | None]:
    for rope in tables.ropes:
        yield rope.inverse_frequencies
        yield rope.magnitudes
    yield from tables.windows


def _form(tensor: Tensor | None) -> tuple[object, ...] | None:
    return None if tensor is None else (tensor.shape, tensor.dtype, tensor.device)
