"""What each collective is for mpi4py: the name of its call and its arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..protocol import Request

__all__ = ["CALLS", "SCANS", "Arguments"]

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
