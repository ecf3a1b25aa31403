"""What every call of a transport costs in a dry run, algorithm by algorithm.

Sums and copies by the algorithms of `collectives.algorithms`, whose `predict` has their formulas. The calls that have
none there are predicted by the algorithms that MPI libraries use for them (Thakur, Rabenseifner and Gropp,
"Optimization of collective communication operations in MPICH", IJHPCA 19 (2005), section 3); n is all parts together,
alpha the latency, beta the time to send a byte:

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
    """Every algorithm that a call has, the usual one first, with its cost for the rank that sends most.

    Parameters
    ----------
    call : str
        A communicator's.
    bytes : int
        Of the whole value.
    ranks : tuple of int
        The world ranks of the group.
    machine : Topology, optional
        Without it all times are 0.

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
    hosts = [] if machine is None else machine.hosts(ranks)
    if machine is not None and call == "all_reduce" and len(hosts) > 1 and hosts[0] > 1 and len(set(hosts)) == 1:
        inside = machine.inside
        yield "hierarchical", predict(
            call, "hierarchical", n, p, a, b, g, ranks_per_host=hosts[0], inside_alpha_s=inside.latency_s,
            inside_beta_s_per_byte=1 / inside.bytes_per_s,
        )  # fmt: skip


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
    elif call in ("get", "accumulate"):  # n is what is another rank's
        yield "direct", Cost(a + n * b, 1, n)
    elif call == "exchange":
        yield "ring", Cost((p - 1) * a + parts * b, p - 1, parts)
        yield "recursive_doubling", Cost(rounds * a + parts * b, rounds, parts)
    else:
        yield "tree", Cost(rounds * a + parts * b, rounds, parts)
