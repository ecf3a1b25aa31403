"""The division of rows among blocks, threads and shared memory: the launches of the kernels that use ``rows.cuh``."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ...arrays import runtime_of
from ...errors import ShapeError
from ..blocks import rows
from .program import Launch

__all__ = [
    "MOST_PACKS", "Rows", "contiguous", "held_rows", "made_of", "matrix", "plan", "shared_bytes", "streamed_rows"
]  # fmt: skip

PACK_BYTES = 16
BLOCK_THREADS = 256
"""Threads of a block, unless a row needs more. Blocks of this size fill a multiprocessor at every use of registers."""
PACKS_PER_THREAD = 8
"""A thread has at most so many packs of a row, while there can be more threads. So many copies are under way."""
STATIC_BYTES = 2 << 10
"""Shared memory that a kernel uses besides the rows, at most."""
RESERVED_BYTES = 1 << 10
"""Shared memory that CUDA itself takes of each block."""
MOST_PACKS = 1 << 26
"""So that places in a row fit into 32 bits."""


class Rows(NamedTuple):
    """The launch of a kernel over rows."""

    grid: tuple[int, ...]
    block: tuple[int, int]
    most: np.int32  # packs of a row that are held in shared memory
    shared_bytes: int


def matrix(x: Any) -> Any:
    """`x` as a contiguous matrix of its last dimension. Views of contiguous arrays need no copy.

    Raises
    ------
    ShapeError
        A row has more elements than the kernels count.
    """
    width = x.shape[-1]
    if width * x.itemsize > MOST_PACKS * PACK_BYTES:
        raise ShapeError(
            f"a row of {width} elements of dtype {x.dtype} was given; needed: at most "
            f"{MOST_PACKS * PACK_BYTES // x.itemsize}, which the GPU's kernels count with 32 bits"
        )
    if len(x.shape) == 2 and x.flags.c_contiguous:
        return x
    return rows(x) if x.size else x.reshape(math.prod(x.shape[:-1]), width)


def contiguous(x: Any) -> Any:
    """`x`, or a copy where its elements are not in order; None of None."""
    return x if x is None or x.flags.c_contiguous else x.copy()


def _power_of_two(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def plan(n: int, packs: int, per_thread: int, most_threads: int) -> tuple[tuple[int], tuple[int, int]]:
    """The grid and the block for `n` rows of so many packs.

    A row has a thread for each of its packs up to a warp, which share 512 adjacent bytes, and beyond that for each
    `per_thread` of its packs.
    """
    threads = max(min(32, _power_of_two(packs)), _power_of_two(-(-packs // per_thread)))
    threads = min(threads, most_threads)
    side_by_side = max(1, BLOCK_THREADS // threads)
    return (-(-n // side_by_side),), (threads, side_by_side)


def shared_bytes(x: Any) -> int:
    """The most dynamic shared memory that a block of these kernels may have on the device of `x`."""
    runtime = runtime_of(type(x))
    assert runtime is not None
    return runtime.most_shared_bytes - STATIC_BYTES


def held_rows(x: Any, arrays: int = 1) -> Rows:
    """The launch of a kernel that holds the rows of a matrix, and of `arrays` of its shape, in shared memory.

    A block holds so much of wide rows that two blocks share a multiprocessor: one reads while the other computes. The
    rest of a row is read again, from the second-level cache.
    """
    most_bytes = (shared_bytes(x) + STATIC_BYTES - RESERVED_BYTES) // 2 - STATIC_BYTES
    packs = -(-x.shape[1] * x.itemsize // PACK_BYTES)
    # two blocks of 1,024 would leave 32 registers for a thread
    grid, block = plan(len(x), packs, PACKS_PER_THREAD, 512)
    room = most_bytes // (arrays * block[1] * PACK_BYTES)
    most = min(packs + 1, room)  # one more, because a row may begin and end in the midst of a pack
    return Rows(grid, block, np.int32(most), most * arrays * block[1] * PACK_BYTES)


def made_of(rows: Rows, arrays: int, x: Any, *numbers: Any) -> Launch:
    """The `Launch` of a kernel over rows: of so many arrays, the sizes of the matrix `x`, and further numbers."""
    whole: list[Any] = [None] * arrays
    sizes = np.int64(len(x)), np.int32(x.shape[1])
    return Launch(rows.grid, rows.block, (*whole, *sizes, *numbers), rows.shared_bytes)


def streamed_rows(x: Any) -> Rows:
    """The launch of a kernel that reads each row once, without shared memory."""
    packs = -(-x.shape[1] * x.itemsize // PACK_BYTES)
    return Rows(*plan(len(x), packs, 2 * PACKS_PER_THREAD, 512), np.int32(0), 0)
