"""One-sided calls over MPI windows, with passive targets: who owns the memory takes no part in a transfer.

Each call makes a window over the caller's array, transfers, and frees it. Freeing is collective, so when a call returns
all ranks have what they asked for and nobody reads or writes the memory any more. MPI leaves open in which order the
ranks' accumulates meet at one element: sums of three or more floating-point numbers may differ in the last bit from
run to run. See the MPI standard 4.1, chapter 12 (one-sided communications).

This file imports mpi4py only when it is called.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from collectives.backends.mpi_plans import Kind
from collectives.communicator import Array, Runs

__all__ = ["accumulate", "get"]


def get(comm: Any, kind: Kind, x: Array, runs: Runs) -> Array:
    """What `runs` name of all ranks' arrays; `comm` is None for a single rank, which makes no MPI calls."""
    out = np.empty(sum(n for _, _, n in runs), x.dtype)
    if comm is None:
        start = 0
        for _, at, n in runs:
            out[start : start + n] = x[at : at + n]
            start += n
        return out
    from mpi4py import MPI

    window = MPI.Win.Create(_memory(x), x.itemsize, MPI.INFO_NULL, comm)
    window.Lock_all(MPI.MODE_NOCHECK)
    start = 0
    for source, at, n in runs:
        window.Get([out[start : start + n], kind.move], source, (at, n, kind.move))
        start += n
    window.Unlock_all()
    window.Free()
    return out


def accumulate(comm: Any, kind: Kind, values: Array, runs: Runs, count: int) -> Array:
    """`count` zeros, with all that the ranks' runs add to them; float16 is added in float32 and rounded once."""
    dtype = values.dtype
    values = values if kind.wide is None else values.astype(kind.wide)
    total = np.zeros(count, values.dtype)
    if comm is None:
        start = 0
        for _, at, n in runs:
            total[at : at + n] += values[start : start + n]
            start += n
        return total.astype(dtype, copy=False)
    from mpi4py import MPI

    window = MPI.Win.Create(_memory(total), total.itemsize, MPI.INFO_NULL, comm)
    window.Lock_all(MPI.MODE_NOCHECK)
    start = 0
    for target, at, n in runs:
        window.Accumulate([values[start : start + n], kind.add], target, (at, n, kind.add), kind.operation)
        start += n
    window.Unlock_all()
    window.Free()
    return total.astype(dtype, copy=False)


def _memory(x: Array) -> Any:
    """The array as a window takes it: bytes, which need not be writeable where they are only read."""
    return x.view(np.uint8) if x.size else None
