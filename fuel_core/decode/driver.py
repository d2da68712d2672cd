"""The ladder: which path serves a step. It never asks which family it drives.

D1 is the eager step, built, run and forgotten. D2 is a held plan, replayed. A step of one token a
row goes through D2 when a plan fits, and makes one when none does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from fuel_core.cache import Cache
from fuel_core.decode.token_choice import RowChoice, choose_now
from fuel_core.errors import TopologyChanged

if TYPE_CHECKING:
    from fuel_core.decode.session import DecodeSession


def drive(
    session: DecodeSession, token_ids: Sequence[Sequence[int]], caches: Sequence[Cache | None]
) -> Tensor:
    """Append ``token_ids[b]`` to ``caches[b]`` and return the last tokens' logits, ``[B, V]``.

    The caches advance once, after success; whatever is raised leaves them and the held plan alone.
    """
    if len(token_ids[0]) != 1:
        return session.run_once(token_ids, caches)  # a held plan that still fits is kept
    plan = session.held_plan(caches)
    if plan is None:
        plan = session.make_plan(token_ids, caches)  # takes the place of one that no longer fits
    try:
        logits = session.replay(plan, token_ids, caches)
    except TopologyChanged:
        session.drop(plan)
        return session.run_once(token_ids, caches)
    session.advance(token_ids, caches)
    return logits


def drive_chosen(
    session: DecodeSession,
    token_ids: Sequence[Sequence[int]],
    caches: Sequence[Cache | None],
    choices: Sequence[RowChoice],
    after: Sequence[RowChoice] | None,
) -> Tensor:
    """As :func:`drive` for one token a row, and choose each row's next token: ``[B, 2]`` on the host.

    With ``after``, the step of the tokens chosen now may be launched already.
    """
    plan = session.held_plan(caches)
    if plan is None:
        plan = session.make_plan(token_ids, caches)
    try:
        chosen = session.replay_chosen(plan, token_ids, caches, choices, after)
    except TopologyChanged:
        session.drop(plan)
        return choose_now(session.run_once(token_ids, caches), choices)
    session.advance(token_ids, caches)
    return chosen
