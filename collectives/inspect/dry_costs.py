"""Predicted costs of transport calls in a dry run, for each algorithm that can implement the call.

The costs of all_reduce, reduce_scatter, all_gather, broadcast and reduce come from `collectives.algorithms.predict`.
The other calls are predicted by the algorithms that MPI libraries use for them (Thakur, Rabenseifner and Gropp,
"Optimization of collective communication operations in MPICH", IJHPCA 19 (2005), section 3). Here n is the size of all
parts together in bytes, p the number of ranks, alpha the latency and beta the time to send a byte:

================  ===================  ==============================
call              algorithm            time
================  ===================  ==============================
exchange          ring                 (p-1) alpha + n (p-1)/p beta
exchange          recursive_doubling   log2 p alpha + n (p-1)/p beta
gather, scatter   tree                 log2 p alpha + n (p-1)/p beta
all_to_all        pairwise             (p-1) alpha + n (p-1)/p beta
send, recv        direct               alpha + n beta
barrier           dissemination        log2 p alpha
all_reduce max    recursive_doubling   as all_reduce; so does prod
scan              recursive_doubling   log2 p (alpha + n beta)
get, accumulate   direct               alpha + n beta
================  ===================  ==============================
"""

from __future__ import annotations

from collections.abc import Iterator

from ..algorithms.costs import Cost, candidates, predict
from ..algorithms.table import OPERATIONS
from .topology import Topology

__all__ = ["costs"]


def costs(call: str, bytes: int, ranks: tuple[int, ...], machine: Topology | None) -> Iterator[tuple[str, Cost]]:
    """Yield every algorithm of a call, the usual one first, with its cost on the rank that sends most.

    Parameters
    ----------
    call : str
        The name of a call of a communicator.
    bytes : int
        The size of the whole value.
    ranks : tuple of int
        The world ranks of the group.
    machine : Topology, optional
        Without it, all times are 0.

    Yields
    ------
    (str, Cost)
        The name of the algorithm, and its cost.

    Examples
    --------
    >>> from collectives.inspect.dry_costs import costs
    >>> next(costs("all_reduce", 800, (0, 1, 2, 3), None))
    ('ring', Cost(time_s=0.0, messages=6, bytes=1200.0))
    """
    n, p = float(bytes), len(ranks)
    a = b = g = 0.0
    if machine is not None:
        link = machine.link(ranks)
        a, b, g = link.latency_s, 1 / link.bytes_per_s, machine.gamma_s_per_byte
    if call not in OPERATIONS:
        yield from _others(call, n, p, a, b)
        return
    for name in candidates(call, n, p, a, b):
        if p > 1:
            yield name.partition(":")[0], predict(call, name, n, p, a, b, g)
    if machine is not None and call == "all_reduce":
        levels = machine.links(ranks)[0]
        if any(size > 1 for size, *_ in levels):
            yield "hierarchical", predict(call, "hierarchical", n, p, a, b, g, levels=levels)


def _others(call: str, n: float, p: int, a: float, b: float) -> Iterator[tuple[str, Cost]]:
    rounds, parts = (p - 1).bit_length(), n * (p - 1) / p
    if call == "send":
        yield "direct", Cost(a + n * b, 1, n)
    elif call == "recv":
        yield "direct", Cost(a + n * b, 0, 0.0)
    elif call == "barrier":
        yield "dissemination", Cost(rounds * a, rounds, 0.0)
    elif call == "all_to_all":
        yield "pairwise", Cost((p - 1) * a + parts * b, p - 1, parts)
    elif call.startswith("all_reduce "):  # of the largest, or of the product
        name = "recursive_doubling"
        yield name, predict("all_reduce", name, n, p, a, b)
    elif call == "scan":
        yield "recursive_doubling", Cost(rounds * (a + n * b), rounds, rounds * n)
    elif call in ("get", "accumulate"):  # n is the size of the other rank's part
        yield "direct", Cost(a + n * b, 1, n)
    elif call == "exchange":
        yield "ring", Cost((p - 1) * a + parts * b, p - 1, parts)
        yield "recursive_doubling", Cost(rounds * a + parts * b, rounds, parts)
    else:
        yield "tree", Cost(rounds * a + parts * b, rounds, parts)
