"""A fault of the core, and where it must be noticed."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from fuel_core.plans.model_plan import ModelPlan

Patch = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class CoreMutation:
    """One fault.

    Attributes:
        name: what is broken.
        patch: breaks it.
        uses: whether a model uses the part, so that its tests must see the fault.
        spares_planned_token: the fault lies in the rebind, so the token that plans is right and the
            next one wrong; a test that decodes a single token would be blind to it.
    """

    name: str
    patch: Patch
    uses: Callable[[ModelPlan], bool] = lambda plan: True
    spares_planned_token: bool = False
