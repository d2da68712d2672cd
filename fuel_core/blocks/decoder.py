"""The decoder: embed, layers, final norm, head. One path for every kind of step.

Letters: B rows, T new tokens, M model width, V vocabulary.
"""

from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from fuel_core.blocks.embedding import Embedding
from fuel_core.blocks.linear import Linear
from fuel_core.blocks.norm import normalisation
from fuel_core.cache import LayerBuffers
from fuel_core.ops import at_least_float32, project
from fuel_core.plans.model_plan import ModelPlan
from fuel_core.step import Step, StepInputs, StepTables


class WeightSet:
    """The identity of a set of weights: decoders over one set may share a held plan, others never.

    Attributes:
        epoch: counts every replacement of parameters; plans bound to older ones are void.
    """

    def __init__(self) -> None:
        self.epoch = 0


class Decoder(nn.Module):
    """A causal language model over parts that a family composes.

    Attributes:
        plan: what this model is.
        weights: the identity of its parameters.
    """

    def __init__(self, plan: ModelPlan, *, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.plan = plan
        self.embed = Embedding(plan.vocab_size, plan.hidden_size)
        self.layers = nn.ModuleList(layers)
        self.norm = normalisation(plan.hidden_size, plan.norm)
        self.head = None if plan.tied else Linear(plan.hidden_size, plan.vocab_size, bias=plan.head_bias)
        self.weights = WeightSet()
        self._tables = StepTables.of(plan, torch.device("cpu"))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Called by ``to``, ``half`` and their like."""
        super()._apply(fn, recurse)
        self.weights_replaced()
        return self

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """As in torch; with ``assign=True`` parameters are other tensors afterwards."""
        found = super().load_state_dict(*args, **kwargs)
        self.weights_replaced()
        return found

    def weights_replaced(self) -> None:
        """Say that parameters are other tensors now: held plans bound to the old ones are void."""
        self.weights.epoch += 1

    @property
    def tables(self) -> StepTables:
        """The plan's data on the model's device; float32 and int64, never cast."""
        if self._tables.device != self.device and self.device.type != "meta":
            self._tables = StepTables.of(self.plan, self.device)
        return self._tables

    def share_weights(self, other: "Decoder") -> None:
        """Take the parameters of a decoder of the same parts: no copy, one identity."""
        for path, module in other.named_modules():
            for name, parameter in module.named_parameters(recurse=False):
                setattr(self.get_submodule(path), name, parameter)
        self.weights = other.weights

    @property
    def device(self) -> torch.device:
        return self.embed.weight.device

    def embeddings(self, token_ids_BT: Tensor) -> Tensor:
        """The scaled embeddings of tokens, ``[B, T, M]`` in the activations' dtype."""
        x = self.embed(token_ids_BT)
        if self.plan.embed_scale is not None:
            # before the cast: in bfloat16 the scale itself would be rounded
            x = at_least_float32(x) * self.plan.embed_scale
        scaled: Tensor = x.to(self.plan.numerics.activations)
        return scaled

    def run(self, x_BTM: Tensor, step: Step) -> Tensor:
        """Embeddings to hidden states after the final norm, ``[B, T, M]``."""
        for index, layer in enumerate(self.layers):
            x_BTM = layer(x_BTM, step.layer(index))
        hidden: Tensor = self.norm(x_BTM)
        return hidden

    def logits(self, hidden_BTM: Tensor) -> Tensor:
        """Hidden states to logits, ``[B, T, V]`` in at least float32."""
        if self.head is None:
            return at_least_float32(project(hidden_BTM, self.embed.weight))
        logits = at_least_float32(project(hidden_BTM, self.head.weight))
        return logits if self.head.bias is None else logits + self.head.bias

    def step(self, inputs: StepInputs, buffers: Sequence[LayerBuffers], attended: int = 0) -> Tensor:
        """One step through a cache pool: what is planned, captured and replayed.

        Args:
            attended: the tokens that the row holds after this step; read for T > 1 alone.

        Returns:
            The hidden states after the final norm, ``[B, T, M]``.
        """
        step = Step.cached(self.plan, self.tables, inputs, buffers, attended)
        return self.run(self.embeddings(inputs.token_ids_BT), step)

    def forward(
        self,
        token_ids_BT: Tensor | None = None,
        *,
        embeddings_BTM: Tensor | None = None,
        start_pos: int = 0,
        mask: Tensor | None = None,
    ) -> Tensor:
        """The one-shot, differentiable pass: logits ``[B, T, V]`` of every position.

        Args:
            token_ids_BT: int64; or else ``embeddings_BTM``, used as :meth:`embeddings` returns them.
            start_pos: the position of the first token, for RoPE.
            mask: replaces every layer's mask and window; see :func:`fuel_core.ops.attend_one_shot`.
        """
        return self.logits(self.hidden(token_ids_BT, embeddings_BTM, start_pos, mask))

    def hidden(
        self,
        token_ids_BT: Tensor | None,
        embeddings_BTM: Tensor | None = None,
        start_pos: int = 0,
        mask: Tensor | None = None,
    ) -> Tensor:
        """As :meth:`forward`, but the hidden states after the final norm, ``[B, T, M]``."""
        if embeddings_BTM is None:
            assert token_ids_BT is not None, "give token ids or embeddings"
            embeddings_BTM = self.embeddings(token_ids_BT)
        x = embeddings_BTM
        batch, tokens = x.shape[:2]
        positions = torch.arange(start_pos, start_pos + tokens, device=x.device).expand(batch, tokens)
        regime = torch.full((batch,), self.plan.rope.regime(start_pos + tokens), device=x.device)
        return self.run(x, Step.one_shot(self.plan, self.tables, positions, regime, mask))
