"""Many arrays in one launch: a table of their addresses and sizes, and the pieces that the blocks work on.

What stays the same from step to step (parameters, averages) is in a table on the device. What a step makes anew
(gradients) is passed to the kernel by value, up to `MOST_ADDRESSES` addresses in a launch, so that a step copies
nothing from the host.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...arrays import runtime_of
from ...arrays.capture import refuse
from ...arrays.runtime import Program
from .program import NULL, launch
from .values import by_value, on_device

__all__ = ["MOST_ADDRESSES", "PIECE", "THREADS", "Batch", "Pieces", "pieces_of"]

THREADS = 256
PIECE = 8192
"""The elements that a block works on."""
MOST_NUMBERS = 16
MOST_ADDRESSES = 440
"""The addresses that are passed to a kernel by value. CUDA allows 4,096 bytes of arguments."""
_ADDRESSES = np.dtype((np.void, 8 * MOST_ADDRESSES))


class Pieces:
    """The work of a launch on arrays of given sizes, on the device of `like`.

    `rows` has a row for each array: its size. `work` has one for each piece: the number of its array, and its own
    number in the array. Both are on the device. `ends` are the numbers of pieces before each array, and of all.
    """

    def __init__(self, sizes: Sequence[int], like: Any):
        self._start(np.array(sizes, np.int64), np.array(sizes, np.int64), like)

    def _start(self, sizes: np.ndarray, rows: np.ndarray, like: Any) -> None:
        refuse("the tables of an optimizer's state or of a norm were made", "make the optimizer before the step")
        pieces = -(-sizes // PIECE)
        self.ends: list[int] = np.concatenate([[0], np.cumsum(pieces)]).tolist()
        work = np.empty((self.ends[-1], 2), np.int32)
        work[:, 0] = np.repeat(np.arange(len(sizes)), pieces)
        work[:, 1] = np.arange(self.ends[-1]) - np.repeat(self.ends[:-1], pieces)
        self.rows, self.work = on_device(rows, like), on_device(work, like)
        runtime = runtime_of(type(like))
        assert runtime is not None
        runtime.current_stream().synchronize()  # any stream may read them

    def launches(self, *varying: Sequence[Any]) -> Iterator[tuple[int, Any, Any]]:
        """For each launch its first row, its work, and the addresses of the `varying` arrays of its rows.

        The addresses of a row follow each other. None stands for an array that is left out.
        """
        count, kinds = len(self.ends) - 1, len(varying)
        for start in range(0, count, MOST_ADDRESSES // kinds):
            stop = min(start + MOST_ADDRESSES // kinds, count)
            table = np.zeros(MOST_ADDRESSES, np.int64)
            for k, arrays in enumerate(varying):
                table[k : kinds * (stop - start) : kinds] = addresses_of(arrays[start:stop])
            work = self.work[self.ends[start] : self.ends[stop]]
            if len(work):
                yield start, work, table.view(_ADDRESSES)[0]


class Batch(Pieces):
    """Arrays of several parameters that are updated together.

    For each kind of array a column has those of all parameters: contiguous, on one device. None is in the place of a
    column that a kernel leaves out. A row on the device has the addresses of a parameter's arrays, and their size.

    `numbers` is memory on the device, of the dtype of the first column, for the numbers of a captured step, which are
    written before a replay. Memory that is allocated during a capture would not do: earlier work of the same capture
    may use it.
    """

    def __init__(self, *columns: Sequence[Any] | None):
        first = columns[0]
        assert first, "at least one parameter"
        self.columns = columns
        sizes = np.array([x.size for x in first], np.int64)
        addresses = [np.zeros(len(sizes), np.int64) if c is None else addresses_of(c) for c in columns]
        self._start(sizes, np.stack([*addresses, sizes], 1), first[0])
        self.numbers = np.empty_like(first[0], shape=(MOST_NUMBERS,))

    def holds(self, *columns: Sequence[Any] | None) -> bool:
        """Whether these are the arrays of the batch."""
        for mine, given in zip(self.columns, columns, strict=True):
            if mine is None or given is None:
                if mine is not given:
                    return False
            elif len(mine) != len(given) or any(a is not b for a, b in zip(mine, given, strict=True)):
                return False
        return True

    def update(
        self, program: Program, kernel: str, gradients: Sequence[Any], given: np.ndarray, numbers: Any, lost: Any
    ) -> None:
        """Launch a kernel that updates the arrays, by the numbers `given`, or by `numbers` on the device."""
        others = by_value(given), NULL if numbers is None else numbers, NULL if lost is None else lost
        for first, work, addresses in self.launches(gradients):
            launch(program, kernel, (len(work),), (THREADS,), (self.rows, work, np.int32(first), addresses, *others))


class _KeptPieces(dict[Any, Pieces]):
    """The work on arrays, by their type, device and sizes; at most `_MOST_KEPT`. To make one waits for the device."""

    def of(self, key: Any, sizes: Sequence[int], like: Any) -> Pieces:
        """The work for a key, made if it is not kept."""
        found = self.get(key)
        if found is None:
            if len(self) >= _MOST_KEPT:
                self.clear()
            found = self[key] = Pieces(sizes, like)
        return found


_MOST_KEPT = 64
_PIECES = _KeptPieces()


def pieces_of(arrays: Sequence[Any]) -> Pieces:
    """The work on arrays, kept for the next arrays of the same sizes."""
    like, sizes = arrays[0], tuple(x.size for x in arrays)
    return _PIECES.of((type(like), str(getattr(like, "device", "")), sizes), sizes, like)


def addresses_of(arrays: Sequence[Any]) -> np.ndarray:
    """The addresses of contiguous device arrays; 0 for None."""
    like = next((x for x in arrays if x is not None), None)
    if like is None:
        return np.zeros(len(arrays), np.int64)
    runtime = runtime_of(type(like))
    assert runtime is not None
    address = runtime.address
    return np.array([0 if x is None else address(x) for x in arrays], np.int64)
