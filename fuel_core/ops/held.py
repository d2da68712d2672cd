"""Attention of new tokens to what their pool rows hold, the new tokens included.

Two ways: over the whole capacity with no value read on the host, the definition for every device; and
over the live prefix of one row, which costs what it attends.

Letters: B rows of this step, T new tokens, H query heads, G key/value heads, D head dim, E value dim,
C capacity, S attended tokens.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fuel_core.errors import CapacityError, GeometryError
from fuel_core.ops.precision import at_least_float32
from fuel_core.plans.mask import first_visible, visible


def check_mask(tokens: int, mask_TS: Tensor | None) -> None:
    """Several tokens come with a mask, one comes without.

    Raises:
        GeometryError: it is otherwise.
    """
    if (tokens > 1) != (mask_TS is not None):
        raise GeometryError(f"{tokens} token(s) with{'out' if mask_TS is None else ''} a mask")


@dataclass(frozen=True)
class Span:
    """What one sequence of a step writes and reads.

    Attributes:
        index: its place in the batch.
        row: its pool row.
        low: the first position that its first new token sees.
        start, stop: the positions of its new tokens; it holds ``stop`` tokens afterwards.
    """

    index: int
    row: int
    low: int
    start: int
    stop: int


def live_spans(rows_B: Tensor, positions_BT: Tensor, window: Tensor, capacity: int) -> Iterator[Span]:
    """Yield the span of each sequence; reads rows, positions and window on the host.

    Raises:
        CapacityError: a slice would drop what lies beyond the capacity, in silence.
    """
    width, tokens = int(window), positions_BT.shape[1]
    starts = positions_BT[:, 0].tolist()
    for index, (row, start) in enumerate(zip(rows_B.tolist(), starts, strict=True)):
        stop = start + tokens
        if stop > capacity:
            raise CapacityError(f"position {stop - 1} is beyond the capacity of {capacity} tokens")
        yield Span(index, row, max(0, first_visible(start, width)), start, stop)


def attend_row(
    q_THD: Tensor, k_GSD: Tensor, v_GSE: Tensor, seen_TS: Tensor | None, scale: float, softcap: float | None
) -> Tensor:
    """Attention of one sequence over its live prefix: ``[T, H, E]``."""
    tokens, heads, dim = q_THD.shape
    groups = k_GSD.shape[0]
    shape = (tokens, heads, v_GSE.shape[-1])
    q_TGRD = q_THD.view(tokens, groups, heads // groups, dim)
    if tokens == 1 and softcap is None:
        return _sdpa(q_TGRD[0], k_GSD, v_GSE, None, scale).reshape(shape)
    # one query head of every group at a time: folding all of them would repeat the T x S mask
    members = []
    for member in range(heads // groups):
        q_GTD = q_TGRD[:, :, member].transpose(0, 1)
        if softcap is None:
            members.append(_sdpa(q_GTD, k_GSD, v_GSE, seen_TS, scale))
        else:
            members.append(_capped(q_GTD, k_GSD, v_GSE, seen_TS, scale, softcap))
    return torch.stack(members, dim=2).permute(1, 0, 2, 3).reshape(shape)


def attend_capacity(
    q_BTHD: Tensor,
    k_BGCD: Tensor,
    v_BGCE: Tensor,
    positions_BT: Tensor,
    window: Tensor,
    mask_TS: Tensor | None,
    scale: float,
    softcap: float | None,
) -> Tensor:
    """Attention over whole rows, whatever they hold beyond the last token: ``[B, T, H, E]``."""
    batch, tokens, heads, dim = q_BTHD.shape
    groups, capacity = k_BGCD.shape[1], k_BGCD.shape[2]
    slots_C = torch.arange(capacity, device=q_BTHD.device)
    # what lies beyond the last token may hold anything, NaN included: 0 * NaN is no zero
    held_BC = slots_C <= positions_BT[:, -1:]
    values_B1GCE = v_BGCE.to(q_BTHD.dtype)[:, None].masked_fill(~held_BC[:, None, None, :, None], 0)

    q_BTGRD = q_BTHD.view(batch, tokens, groups, heads // groups, dim)
    scores = torch.matmul(q_BTGRD, k_BGCD.to(q_BTHD.dtype)[:, None].transpose(-1, -2)) * scale
    seen_BTC = visible(positions_BT[:, :, None], slots_C, window)
    if mask_TS is not None:
        padded = F.pad(mask_TS, (0, capacity - mask_TS.shape[-1]), value=False)
        seen_BTC = seen_BTC & padded
    weights = _softmax(_cap(scores, softcap).masked_fill(~seen_BTC[:, :, None, None], -torch.inf))
    out = torch.matmul(weights.to(q_BTHD.dtype), values_B1GCE)
    return out.reshape(batch, tokens, heads, v_BGCE.shape[-1])


def _sdpa(q_GTD: Tensor, k_GSD: Tensor, v_GSE: Tensor, seen_TS: Tensor | None, scale: float) -> Tensor:
    spare = k_GSD.shape[-1] - v_GSE.shape[-1]
    if spare > 0:
        # torch's CPU kernel wants one width; its other path holds all T x S scores
        v_GSE = F.pad(v_GSE, (0, spare))
    out = F.scaled_dot_product_attention(q_GTD[None], k_GSD[None], v_GSE[None], seen_TS, scale=scale)[0]
    return out[..., : out.shape[-1] - spare] if spare > 0 else out


def _capped(
    q_GTD: Tensor, k_GSD: Tensor, v_GSE: Tensor, seen_TS: Tensor | None, scale: float, softcap: float
) -> Tensor:
    scores = _cap(torch.matmul(q_GTD, k_GSD.transpose(-1, -2)) * scale, softcap)
    if seen_TS is not None:
        scores = scores.masked_fill(~seen_TS, -torch.inf)
    return torch.matmul(_softmax(scores).to(v_GSE.dtype), v_GSE)


def _cap(scores: Tensor, softcap: float | None) -> Tensor:
    return scores if softcap is None else softcap * torch.tanh(scores / softcap)


def _softmax(scores: Tensor) -> Tensor:
    """Softmax over keys in at least float32."""
    return torch.softmax(at_least_float32(scores), dim=-1)
