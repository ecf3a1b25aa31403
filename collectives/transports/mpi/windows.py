"""One-sided calls over MPI windows, with passive targets: the owner of the memory takes no part in a transfer.

Each call makes a window over the caller's array, transfers the data, and frees the window. Freeing is collective: when
a call returns, all transfers are complete and no rank accesses the memory any more. There is one transfer per source,
for any number of runs, which are combined in a datatype. MPI does not define the order in which the ranks' accumulates
are applied to an element, so sums of three or more floating-point numbers may differ in the last bit from run to run.
See the MPI standard 4.1, chapters 5 (datatypes) and 12 (one-sided communications).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..protocol import Array, Runs
from .library import MPI, Kind

__all__ = ["accumulate", "get"]


def get(comm: Any, kind: Kind, x: Array, runs: Runs, out: Array) -> Array:
    """Fill `out` with the elements of all ranks' arrays that `runs` select."""
    window = _opened(comm, x)
    for source, here, there, counts in _by_source(runs):
        with _Typed(kind.datatype, here, counts) as mine, _Typed(kind.datatype, there, counts) as theirs:
            window.Get([out, 1, mine], source, (0, 1, theirs))
    window.Unlock_all()
    window.Free()
    return out


def accumulate(comm: Any, kind: Kind, values: Array, runs: Runs, out: Array) -> Array:
    """Fill `out` with zeros, plus the values that all ranks' runs add to it."""
    out[...] = 0
    window = _opened(comm, out)
    kept = []  # an accumulate may read its array until the window is unlocked
    for target, here, there, counts in _by_source(runs):
        given, here, there, counts = _added_up(values, here, there, counts)
        kept.append(given)
        with _Typed(kind.datatype, here, counts) as mine, _Typed(kind.datatype, there, counts) as theirs:
            window.Accumulate([given, 1, mine], target, (0, 1, theirs), kind.operations["sum"])
    window.Unlock_all()
    window.Free()
    return out


def _opened(comm: Any, x: Array) -> Any:
    """A window over the bytes of an array, opened for access to all ranks."""
    window = MPI.Win.Create(x.view(np.uint8) if x.size else None, x.itemsize, MPI.INFO_NULL, comm)
    window.Lock_all(MPI.MODE_NOCHECK)
    return window


class _Typed:
    """A datatype made of runs. It may be freed once its transfer was started, because MPI keeps a reference."""

    def __init__(self, element: Any, starts: Array, counts: Array):
        self._type = element.Create_indexed(counts.tolist(), starts.tolist()).Commit()

    def __enter__(self) -> Any:
        return self._type

    def __exit__(self, *error: Any) -> None:
        self._type.Free()


def _by_source(runs: Runs) -> Iterator[tuple[int, Array, Array, Array]]:
    """For every source: the offsets of its runs in this rank's array and in the source's, and their counts."""
    table = np.array(runs, np.int64).reshape(-1, 3)
    table = np.column_stack([table, np.cumsum(table[:, 2]) - table[:, 2]])[table[:, 2] > 0]
    for source in np.unique(table[:, 0]):
        _, there, counts, here = table[table[:, 0] == source].T
        yield int(source), here, there, counts


def _added_up(values: Array, here: Array, there: Array, counts: Array) -> tuple[Array, Array, Array, Array]:
    """The same additions with each element named once: a target's datatype must not have overlapping elements."""
    order = np.argsort(there, kind="stable")
    if not np.any(there[order][1:] < (there + counts)[order][:-1]):
        return values, here, there, counts
    mine, theirs = (np.concatenate([np.arange(a, a + n) for a, n in zip(start, counts, strict=True)])
                    for start in (here, there))  # fmt: skip
    places, inverse = np.unique(theirs, return_inverse=True)
    sums = np.zeros(len(places), values.dtype)
    np.add.at(sums, inverse, values[mine])
    begins = np.concatenate([[0], np.flatnonzero(np.diff(places) != 1) + 1])
    return sums, begins, places[begins], np.diff(np.concatenate([begins, [len(places)]]))
