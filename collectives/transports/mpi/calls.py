"""What each collective is for mpi4py: the name of its call, its arguments, and the datatypes of its arrays.

Nothing here imports mpi4py: `library` calls `fill_kinds` when it does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..protocol import Request

__all__ = ["CALLS", "SCANS", "Arguments", "Kind", "fill_kinds", "kinds"]


class Kind(NamedTuple):
    """How MPI moves the elements of a dtype, and its operations, by the name of the reduction."""

    datatype: Any
    operations: dict[str, Any]


kinds: dict[np.dtype[Any], Kind] = {}
"""Every dtype that can be communicated."""

Arguments = Callable[[Request, Any, Any, Any, Any], tuple[Any, ...]]
"""``arguments(request, x, out, datatype, operation)``"""

CALLS: dict[str, tuple[str, Arguments]] = {
    "all_reduce": ("Allreduce", lambda r, x, out, t, op: ((x, t), (out, t), op)),
    "reduce": ("Reduce", lambda r, x, out, t, op: ((x, t), None if out is None else (out, t), op, r.root)),
    "broadcast": ("Bcast", lambda r, x, out, t, op: ((out, t), r.root)),
    "gather": ("Gatherv", lambda r, x, out, t, op: ((x, t), None if out is None else _parts(out, r.counts, t), r.root)),
    "all_gather": ("Allgatherv", lambda r, x, out, t, op: ((x, t), _parts(out, r.counts, t))),
    "scatter": ("Scatterv", lambda r, x, out, t, op: (None if x is None else _parts(x, r.counts, t), (out, t), r.root)),
    "reduce_scatter": ("Reduce_scatter", lambda r, x, out, t, op: ((x, t), (out, t), list(r.counts or ()), op)),
    "all_to_all": ("Alltoallv", lambda r, x, out, t, op: (_parts(x, r.counts, t), _parts(out, r.receive_counts, t))),
    "barrier": ("Barrier", lambda r, x, out, t, op: ()),
}
"""The name of mpi4py's blocking call (its nonblocking form has an I before it), and what makes its arguments."""

SCANS: dict[bool, tuple[str, Arguments]] = {
    False: ("Scan", lambda r, x, out, t, op: ((x, t), (out, t), op)),
    True: ("Exscan", lambda r, x, out, t, op: ((x, t), (out, t), op)),
}
"""The same of `scan`, by whether it is exclusive."""


def _parts(x: Any, counts: Any, datatype: Any) -> tuple[Any, ...]:
    return x, list(counts), datatype  # a list: mpi4py takes a tuple for counts and displacements


def fill_kinds(MPI: Any) -> None:
    """Fill in `kinds`."""
    for char in "bBhHiIlLqQfdgFDG":
        datatype = MPI._typedict.get(char, MPI.DATATYPE_NULL)
        if datatype != MPI.DATATYPE_NULL:
            kinds[np.dtype(char)] = Kind(datatype, {"sum": MPI.SUM, "max": MPI.MAX, "prod": MPI.PROD})
    # as numpy does with booleans
    kinds[np.dtype(np.bool_)] = Kind(MPI.C_BOOL, {"sum": MPI.LOR, "max": MPI.LOR, "prod": MPI.LAND})
    # MPI has no float16: it is moved as bytes are, and added in float32 (by the protocol)
    kinds[np.dtype(np.float16)] = Kind(MPI.UINT16_T, {})
