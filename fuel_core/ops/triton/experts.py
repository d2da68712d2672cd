"""``fuel::experts`` as Triton kernels that read the chosen experts' ids from device memory.

*By choice*, for few tokens: matrix-vector products, each choice's matrices read in place. *Grouped*, for
many: the choices sorted by expert, so that a block of them shares one expert's matrices. Neither uses
atomics: a token's choices are summed in float32, in their order.

Letters: N tokens, K experts chosen for a token, E experts, M model width, I expert width.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from fuel_core.ops.triton.activation import activated
from fuel_core.plans.model_plan import ActivationName

_SUMMED_COLUMNS = 512

_FEW_TOKENS = 16
"""Up to so many tokens share too few experts for a block of one expert's tokens to fill a matrix product."""


@triton.jit
def chosen_hidden_kernel(
    X,
    GATE_UP,
    IDS,
    HIDDEN,
    x_stride,
    MODEL: tl.constexpr,
    INNER: tl.constexpr,
    CHOICES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    NAME: tl.constexpr,
):
    """Some hidden units of one choice: ``activation(gate(x)) * up(x)``."""
    choice = tl.program_id(1)
    units = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = units < INNER
    expert = tl.load(IDS + choice).to(tl.int64)
    x_row = X + (choice // CHOICES) * x_stride
    gate_rows = GATE_UP + expert * (2 * INNER * MODEL) + units[:, None] * MODEL
    gate, up = tl.zeros([ROWS, COLUMNS], tl.float32), tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(0, MODEL, COLUMNS):
        columns = first + tl.arange(0, COLUMNS)
        x = tl.load(x_row + columns, mask=columns < MODEL, other=0.0).to(tl.float32)[None, :]
        kept = there[:, None] & (columns < MODEL)[None, :]
        gate += tl.load(gate_rows + columns[None, :], mask=kept, other=0.0).to(tl.float32) * x
        up += tl.load(gate_rows + INNER * MODEL + columns[None, :], mask=kept, other=0.0).to(tl.float32) * x
    hidden = activated(tl.sum(gate, 1), NAME) * tl.sum(up, 1)
    tl.store(HIDDEN + choice * INNER + units, hidden, mask=there)


@triton.jit
def chosen_output_kernel(
    HIDDEN,
    DOWN,
    IDS,
    OUT,
    MODEL: tl.constexpr,
    INNER: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Some outputs of one choice, not yet weighted."""
    choice = tl.program_id(1)
    outputs = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = outputs < MODEL
    expert = tl.load(IDS + choice).to(tl.int64)
    down_rows = DOWN + expert * (MODEL * INNER) + outputs[:, None] * INNER
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(0, INNER, COLUMNS):
        columns = first + tl.arange(0, COLUMNS)
        hidden = tl.load(HIDDEN + choice * INNER + columns, mask=columns < INNER, other=0.0)
        kept = there[:, None] & (columns < INNER)[None, :]
        sums += tl.load(down_rows + columns[None, :], mask=kept, other=0.0).to(tl.float32) * hidden[None, :]
    tl.store(OUT + choice * MODEL + outputs, tl.sum(sums, 1), mask=there)


@triton.jit
def weighted_sum_kernel(
    CHOSEN, WEIGHTS, OUT, MODEL: tl.constexpr, CHOICES: tl.constexpr, COLUMNS: tl.constexpr
):
    """Some outputs of one token: the weighted sum of its choices, in their order."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    there = columns < MODEL
    sums = tl.zeros([COLUMNS], tl.float32)
    for choice in range(token * CHOICES, (token + 1) * CHOICES):
        chosen = tl.load(CHOSEN + choice * MODEL + columns, mask=there, other=0.0)
        sums += chosen * tl.load(WEIGHTS + choice).to(tl.float32)
    tl.store(OUT + token * MODEL + columns, sums, mask=there)


@triton.jit
def block_choices(ORDER, ENDS, BLOCK_ENDS, block, expert, SLOTS: tl.constexpr):
    """The choices of one block, ``(choices, which of the places are taken)``.

    An expert's choices fill places in the sorted order, its blocks follow each other.
    """
    before = tl.maximum(expert - 1, 0)
    is_first = expert == 0
    first_block = tl.where(is_first, 0, tl.load(BLOCK_ENDS + before))
    first_place = tl.where(is_first, 0, tl.load(ENDS + before))
    places = first_place + (block - first_block) * SLOTS + tl.arange(0, SLOTS)
    taken = places < tl.load(ENDS + expert)
    return tl.load(ORDER + places, mask=taken, other=0), taken


@triton.jit
def grouped_hidden_kernel(
    X,
    GATE_UP,
    ORDER,
    ENDS,
    BLOCK_ENDS,
    BLOCK_EXPERTS,
    HIDDEN,
    x_stride,
    MODEL: tl.constexpr,
    INNER: tl.constexpr,
    CHOICES: tl.constexpr,
    EXPERTS: tl.constexpr,
    SLOTS: tl.constexpr,
    UNITS: tl.constexpr,
    COLUMNS: tl.constexpr,
    NAME: tl.constexpr,
):
    """Some hidden units of one expert for a block of its choices."""
    block = tl.program_id(1)
    expert = tl.load(BLOCK_EXPERTS + block)
    if expert >= EXPERTS:  # the grid has room for the worst case
        return
    choices, taken = block_choices(ORDER, ENDS, BLOCK_ENDS, block, expert, SLOTS)
    units = tl.program_id(0) * UNITS + tl.arange(0, UNITS)
    there = units < INNER
    x_rows = X + (choices // CHOICES)[:, None] * x_stride
    gate_rows = GATE_UP + expert * (2 * INNER * MODEL) + units[:, None] * MODEL
    gate, up = tl.zeros([SLOTS, UNITS], tl.float32), tl.zeros([SLOTS, UNITS], tl.float32)
    for first in range(0, MODEL, COLUMNS):
        columns = first + tl.arange(0, COLUMNS)
        inside = (columns < MODEL)[None, :]
        x = tl.load(x_rows + columns[None, :], mask=taken[:, None] & inside, other=0.0)
        kept = there[:, None] & inside
        w_gate = tl.load(gate_rows + columns[None, :], mask=kept, other=0.0).to(x.dtype)
        w_up = tl.load(gate_rows + INNER * MODEL + columns[None, :], mask=kept, other=0.0).to(x.dtype)
        gate = tl.dot(x, tl.trans(w_gate), gate, input_precision="tf32x3")
        up = tl.dot(x, tl.trans(w_up), up, input_precision="tf32x3")
    hidden = (activated(gate, NAME) * up).to(HIDDEN.dtype.element_ty)
    places = HIDDEN + choices[:, None] * INNER + units[None, :]
    tl.store(places, hidden, mask=taken[:, None] & there[None, :])


@triton.jit
def grouped_output_kernel(
    HIDDEN,
    DOWN,
    ORDER,
    ENDS,
    BLOCK_ENDS,
    BLOCK_EXPERTS,
    OUT,
    MODEL: tl.constexpr,
    INNER: tl.constexpr,
    EXPERTS: tl.constexpr,
    SLOTS: tl.constexpr,
    UNITS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Some outputs of one expert for a block of its choices, not yet weighted."""
    block = tl.program_id(1)
    expert = tl.load(BLOCK_EXPERTS + block)
    if expert >= EXPERTS:
        return
    choices, taken = block_choices(ORDER, ENDS, BLOCK_ENDS, block, expert, SLOTS)
    outputs = tl.program_id(0) * UNITS + tl.arange(0, UNITS)
    there = outputs < MODEL
    down_rows = DOWN + expert * (MODEL * INNER) + outputs[:, None] * INNER
    sums = tl.zeros([SLOTS, UNITS], tl.float32)
    for first in range(0, INNER, COLUMNS):
        columns = first + tl.arange(0, COLUMNS)
        inside = (columns < INNER)[None, :]
        places = HIDDEN + choices[:, None] * INNER + columns[None, :]
        hidden = tl.load(places, mask=taken[:, None] & inside, other=0.0)
        w = tl.load(down_rows + columns[None, :], mask=there[:, None] & inside, other=0.0).to(hidden.dtype)
        sums = tl.dot(hidden, tl.trans(w), sums, input_precision="tf32x3")
    out = OUT + choices[:, None] * MODEL + outputs[None, :]
    tl.store(out, sums, mask=taken[:, None] & there[None, :])


def experts_on_device(
    x_NM: Tensor,
    gate_up: Tensor,
    down: Tensor,
    ids_NK: Tensor,
    weights_NK: Tensor,
    activation: ActivationName,
) -> Tensor:
    """``fuel::experts``; arguments as there, contiguous but for the rows of x. Reads no device value
    on the host."""
    form = by_choice if x_NM.shape[0] <= _FEW_TOKENS else grouped
    return form(x_NM, gate_up, down, ids_NK, weights_NK, activation)


def by_choice(
    x_NM: Tensor,
    gate_up: Tensor,
    down: Tensor,
    ids_NK: Tensor,
    weights_NK: Tensor,
    activation: ActivationName,
    *,
    rows: int = 8,
    columns: int = 256,
) -> Tensor:
    """For few tokens; a program reads ``rows`` of a matrix, ``columns`` at a time, for one choice alone: as
    many reads as possible are under way at once."""
    (tokens, model), (choices, inner) = x_NM.shape, (ids_NK.shape[1], down.shape[2])
    hidden_NKI = torch.empty(tokens, choices, inner, dtype=torch.float32, device=x_NM.device)
    chosen_NKM = torch.empty(tokens, choices, model, dtype=torch.float32, device=x_NM.device)
    chosen_hidden_kernel[(triton.cdiv(inner, rows), tokens * choices)](
        x_NM,
        gate_up,
        ids_NK,
        hidden_NKI,
        x_NM.stride(0),
        MODEL=model,
        INNER=inner,
        CHOICES=choices,
        ROWS=rows,
        COLUMNS=columns,
        NAME=activation,
        num_warps=4,
    )
    chosen_output_kernel[(triton.cdiv(model, rows), tokens * choices)](
        hidden_NKI,
        down,
        ids_NK,
        chosen_NKM,
        MODEL=model,
        INNER=inner,
        ROWS=rows,
        COLUMNS=columns,
        num_warps=4,
    )
    return weighted_sum(chosen_NKM, weights_NK, x_NM.dtype)


def grouped(
    x_NM: Tensor,
    gate_up: Tensor,
    down: Tensor,
    ids_NK: Tensor,
    weights_NK: Tensor,
    activation: ActivationName,
    *,
    slots: int = 32,
    units: int = 64,
    columns: int = 64,
) -> Tensor:
    """For many tokens; a program takes ``slots`` choices of one expert and ``units`` of its outputs."""
    (tokens, model), (choices, inner) = x_NM.shape, (ids_NK.shape[1], down.shape[2])
    experts = gate_up.shape[0]
    ids = ids_NK.flatten()
    order = ids.argsort(stable=True)
    every = torch.arange(experts, device=x_NM.device)
    ends_E = torch.searchsorted(ids[order], every, right=True)
    blocks_E = (ends_E.diff(prepend=ends_E.new_zeros(1)) + slots - 1) // slots
    block_ends_E = blocks_E.cumsum(0)
    # each expert that is chosen at all may leave one block partly empty
    most_blocks = triton.cdiv(tokens * choices, slots) + min(experts, tokens * choices)
    numbers = torch.arange(most_blocks, device=x_NM.device)
    block_experts = torch.searchsorted(block_ends_E, numbers, right=True)
    groups = (order, ends_E, block_ends_E, block_experts)

    hidden_XI = x_NM.new_empty((tokens * choices, inner))
    out_NKM = torch.empty(tokens, choices, model, dtype=torch.float32, device=x_NM.device)
    sizes = {"MODEL": model, "INNER": inner, "EXPERTS": experts, "SLOTS": slots}
    tiles = {"UNITS": units, "COLUMNS": columns, "num_warps": 4, "num_stages": 3}
    grouped_hidden_kernel[(triton.cdiv(inner, units), most_blocks)](
        x_NM, gate_up, *groups, hidden_XI, x_NM.stride(0), CHOICES=choices, NAME=activation, **sizes, **tiles
    )
    grouped_output_kernel[(triton.cdiv(model, units), most_blocks)](
        hidden_XI, down, *groups, out_NKM, **sizes, **tiles
    )
    return weighted_sum(out_NKM, weights_NK, x_NM.dtype)


def weighted_sum(chosen_NKM: Tensor, weights_NK: Tensor, dtype: torch.dtype) -> Tensor:
    """Of each token's choices, in float32 and in their order."""
    tokens, choices, model = chosen_NKM.shape
    out_NM = torch.empty(tokens, model, dtype=dtype, device=chosen_NKM.device)
    weighted_sum_kernel[(tokens, triton.cdiv(model, _SUMMED_COLUMNS))](
        chosen_NKM, weights_NK, out_NM, MODEL=model, CHOICES=choices, COLUMNS=_SUMMED_COLUMNS, num_warps=4
    )
    return out_NM
