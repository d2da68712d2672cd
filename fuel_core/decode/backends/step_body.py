"""The body of a held step: from static inputs to logits."""

from collections.abc import Callable, Sequence

from torch import Tensor

from fuel_core.blocks.decoder import Decoder
from fuel_core.cache import LayerBuffers
from fuel_core.step import Step, StepInputs, StepTables

StepBody = Callable[[Decoder, StepTables, StepInputs, Sequence[LayerBuffers]], Tensor]
"""(model, the data of its plan, inputs, a pool's buffers) -> logits ``[B, V]``."""


def eager_body(
    decoder: Decoder, tables: StepTables, inputs: StepInputs, buffers: Sequence[LayerBuffers]
) -> Tensor:
    """The decoder's own step, operation by operation."""
    step = Step.cached(decoder.plan, tables, inputs, buffers, 0)
    hidden = decoder.run(decoder.embeddings(inputs.token_ids_BT), step)
    return decoder.logits(hidden[:, -1])
