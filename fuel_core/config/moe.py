"""The keys of routed experts that families share."""

from collections.abc import Mapping
from types import MappingProxyType

from pydantic import PositiveInt

from fuel_core.config.family_config import FamilyConfig
from fuel_core.config.ledger import ANY_VALUE, Neutral

EXPERT_TRAINING_KEYS: Mapping[str, Neutral] = MappingProxyType(
    {
        "aux_loss_alpha": ANY_VALUE,
        "ep_size": ANY_VALUE,
        "output_router_logits": ANY_VALUE,
        "router_aux_loss_coef": ANY_VALUE,
        "router_z_loss_coef": ANY_VALUE,
        "seq_aux": ANY_VALUE,
    }
)
"""Keys of the balancing losses and of spreading experts over devices, for a family's ``irrelevant``."""


class MoEKeys(FamilyConfig):
    """How many experts a token goes through, their width, and whether their weights sum to 1.

    ``norm_topk_prob`` is false when absent.
    """

    num_experts_per_tok: PositiveInt
    moe_intermediate_size: PositiveInt
    norm_topk_prob: bool = False
