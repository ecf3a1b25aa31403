"""Maps each collective to mpi4py: the name of its call, and the arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..protocol import Request
from .library import KINDS, MPI, Kind

__all__ = ["CALLS", "mpi_call", "nonblocking"]


Arguments = Callable[[Request, Any, Any, Kind], tuple[Any, ...]]
"""``arguments(request, x, out, kind)``"""

CALLS: dict[str, tuple[str, Arguments]] = {
    "all_reduce": (
        "Allreduce",
        lambda r, x, out, kind: (MPI.IN_PLACE if out is x else _all(x, kind), _all(out, kind), kind.operations[r.op]),
    ),
    "reduce": ("Reduce", lambda r, x, out, kind: (_all(x, kind), _all(out, kind), kind.operations["sum"], r.root)),
    "scan": ("Scan", lambda r, x, out, kind: (_all(x, kind), _all(out, kind), kind.operations["sum"])),
    "exscan": ("Exscan", lambda r, x, out, kind: (_all(x, kind), _all(out, kind), kind.operations["sum"])),
    "reduce_scatter": (
        "Reduce_scatter",
        lambda r, x, out, kind: (_all(x, kind), _all(out, kind), list(r.counts or ()), kind.operations["sum"]),
    ),
    "broadcast": ("Bcast", lambda r, x, out, kind: (_all(out, kind), r.root)),
    "gather": ("Gatherv", lambda r, x, out, kind: (_all(x, kind), _parts(out, r.counts, kind), r.root)),
    "all_gather": ("Allgatherv", lambda r, x, out, kind: ((x, kind.datatype), (out, list(r.counts), kind.datatype))),
    "scatter": ("Scatterv", lambda r, x, out, kind: (_parts(x, r.counts, kind), _all(out, kind), r.root)),
    "all_to_all": (
        "Alltoallv",
        lambda r, x, out, kind: (_parts(x, r.counts, kind), _parts(out, r.receive_counts, kind)),
    ),
    "barrier": ("Barrier", lambda r, x, out, kind: ()),
}
"""The name of mpi4py's blocking call, and a function that makes its arguments. ``exscan`` is an exclusive scan."""


def mpi_call(call: str, request: Request, x: Any, out: Any) -> tuple[str, tuple[Any, ...]]:
    """The name of mpi4py's call, and its arguments."""
    function, arguments = CALLS[call]
    given = x if out is None else out
    return function, arguments(request, x, out, _NO_ARRAY if given is None else KINDS[given.dtype])


def nonblocking(function: str) -> str:
    """The name of the nonblocking form of a call: ``Iallreduce``."""
    return f"I{function[0].lower()}{function[1:]}"


def _all(x: Any, kind: Kind) -> Any:
    return None if x is None else (x, kind.datatype)


def _parts(x: Any, counts: Any, kind: Kind) -> Any:
    return None if x is None else (x, list(counts), kind.datatype)  # mpi4py reads a tuple as counts and displacements


_NO_ARRAY = Kind(None, {})
