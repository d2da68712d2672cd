"""What the sparse Qwen families share: which layers have experts, and how those are chosen.

Source: the published configs and weights of Qwen1.5-MoE, Qwen2-57B-A14B and Qwen3-MoE.
"""

from typing import Annotated, ClassVar, Self

from pydantic import Field, PositiveInt, model_validator

from fuel_core.config import EXPERT_TRAINING_KEYS, NULL_IS_ABSENT, MoEKeys
from fuel_core.errors import ConfigError, PlanError
from fuel_core.plans import GatedMLPPlan, MoEPlan, RouterPlan
from fuel_qwen.architecture import QwenKeys


class SparseKeys(QwenKeys, MoEKeys):
    """The keys of layers with experts, beside those of every Qwen.

    Layer i has experts iff there are any, i is not among ``mlp_only_layers`` and
    ``(i + 1) % decoder_sparse_step == 0``; the others have a block of ``intermediate_size``. Absent, all
    layers have them.
    """

    irrelevant: ClassVar = {**QwenKeys.irrelevant, **EXPERT_TRAINING_KEYS}

    decoder_sparse_step: PositiveInt = 1
    mlp_only_layers: Annotated[
        tuple[Annotated[int, Field(ge=0)], ...], NULL_IS_ABSENT, Field(strict=False)
    ] = ()

    @model_validator(mode="after")
    def _check_mlp_only_layers(self) -> Self:
        beyond = [layer for layer in self.mlp_only_layers if layer >= self.num_hidden_layers]
        if beyond:
            raise ValueError(
                f"mlp_only_layers names layer {beyond[0]}, num_hidden_layers is {self.num_hidden_layers}"
            )
        return self

    def feed_forwards(self, *, experts: int, shared: GatedMLPPlan | None) -> list[GatedMLPPlan | MoEPlan]:
        """The block of each layer; a shared expert is weighed by its own gate.

        Raises:
            ConfigError: more experts are to be chosen than there are.
        """
        dense = self.gated_mlp()
        if not experts:
            return [dense] * self.num_hidden_layers
        try:
            router = RouterPlan(
                experts=experts,
                chosen=self.num_experts_per_tok,
                scoring="softmax",
                normalise=self.norm_topk_prob,
            )
        except PlanError as error:
            raise ConfigError(
                f"num_experts_per_tok ({self.num_experts_per_tok}) and num_experts ({experts}) do not fit "
                f"together: {error}"
            ) from error
        sparse = MoEPlan(
            router=router,
            expert_width=self.moe_intermediate_size,
            activation=self.hidden_act,
            shared=shared,
            shared_gate=shared is not None,
        )
        return [sparse if self._has_experts(layer) else dense for layer in range(self.num_hidden_layers)]

    def _has_experts(self, layer: int) -> bool:
        return layer not in self.mlp_only_layers and (layer + 1) % self.decoder_sparse_step == 0
