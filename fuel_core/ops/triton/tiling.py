"""How operations are cut into programs: from shapes alone, so a captured step never changes it."""

from dataclasses import dataclass

_LEAST_ROWS = 16
"""The fewest rows, and the fewest columns, of a matrix product on tensor cores."""

_BLOCK_ELEMENTS = {2: 18432, 4: 4608}
"""Elements in a block of keys and values, by their size in bytes: the most for which triton 3.7 compiles for
sm_90 without spilling registers, at head dims 64 to 256 and latent 512 + 64. Float32 spills there whatever
the block, and a little at 256."""

_PROGRAMS_PER_PROCESSOR = 2
"""Programs that a multiprocessor is given at once, when a row is long. More keep more loads in flight, and
leave more splits to combine; the number is not measured yet."""


@dataclass(frozen=True, kw_only=True)
class SplitTiling:
    """The cut of one launch.

    Attributes:
        block_tokens: keys that a program reads at a time.
        head_rows: query heads of one program; a group with more has several programs.
        splits: programs among which the live keys of one row and group are shared.
        warps, stages: warps of a program, and blocks that it holds or loads at a time.
    """

    block_tokens: int
    head_rows: int
    splits: int
    warps: int
    stages: int


def padded(size: int) -> int:
    """The width of the tile that holds ``size`` columns."""
    return max(_LEAST_ROWS, 1 << (size - 1).bit_length())


def row_warps(width: int) -> int:
    """Warps of a program that holds a row of ``width`` elements: eight elements a thread, or fewer."""
    return max(1, min(16, 1 << (-(-width // 256) - 1).bit_length()))


def split_tiling(
    *, batch: int, groups: int, members: int, capacity: int, columns: int, itemsize: int, processors: int
) -> SplitTiling:
    """Choose a cut that keeps every multiprocessor busy once a row is long.

    Args:
        batch, groups, members: rows, key/value heads, and query heads of each of these.
        capacity: tokens that a pool row can hold.
        columns: elements that a program reads for one token, padding included.
        itemsize: bytes of an element in products, 2 or 4.
        processors: multiprocessors of the device.
    """
    tokens = _BLOCK_ELEMENTS[itemsize] // columns
    block_tokens = max(_LEAST_ROWS, min(64, 1 << (tokens.bit_length() - 1)))
    head_rows = min(padded(members), 32 if itemsize == 2 and columns <= 256 else 16)
    programs = batch * groups * _ceil(members, head_rows)
    splits = min(_ceil(capacity, block_tokens), _ceil(_PROGRAMS_PER_PROCESSOR * processors, programs))
    return SplitTiling(
        block_tokens=block_tokens,
        head_rows=head_rows,
        # a power of two: each count is another kernel to compile, and capacities are as many as prompts
        splits=1 << (splits.bit_length() - 1),
        warps=4,
        stages=2,
    )


def _ceil(amount: int, share: int) -> int:
    return -(-amount // share)
