"""The ring: every rank sends to its right neighbour only, in 1/p-size parts.

Optimal in bytes, at p - 1 messages in the place of lg p: for long arrays. Patarasu and Yuan 2009 ("Bandwidth optimal
all-reduce algorithms for clusters of workstations"); Thakur, Rabenseifner and Gropp 2005 ("Optimization of collective
communication operations in MPICH", the sections on allgather and reduce-scatter).

==============  =============================================================  =============  ====================
operation       time                                                           messages       bytes sent
==============  =============================================================  =============  ====================
reduce_scatter  (p-1) alpha + n(p-1)/p beta + n(p-1)/p gamma                   p - 1          n(p-1)/p
all_gather      (p-1) alpha + n(p-1)/p beta                                    p - 1          n(p-1)/p
all_reduce      their sum                                                      2(p-1)         2n(p-1)/p
==============  =============================================================  =============  ====================
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from collectives.communicator import Array, Communicator

from .steps import Steps, adder, bounds_of, cut, even_bounds, swap

__all__ = ["all_gather", "all_reduce", "reduce_scatter"]


def _sum_parts(group: Communicator, x: Array, bounds: Sequence[int], total: Array) -> Steps[None]:
    """Leave rank r's part of the sum in its place of `total`.

    The partial sum of part c starts at rank c + 1 and goes once around, each rank adding its own, until it is whole at
    rank c. So at step s rank r sends part r - s - 1 and receives part r - s - 2.
    """
    p, r = group.size, group.rank
    right, left = (r + 1) % p, (r - 1) % p
    own, sums = cut(x, bounds), cut(total, bounds)
    buffer = np.empty(max(part.size for part in own), x.dtype)
    source = own  # only the first part is sent as it is
    for s in range(p - 1):
        leaving, arriving = (r - s - 1) % p, (r - s - 2) % p
        arrived = buffer[: own[arriving].size]
        add = adder(own[arriving], arrived, sums[arriving])
        yield from swap(group, source[leaving], right, arrived, left, add)
        source = sums


def gather_parts(group: Communicator, whole: Array, bounds: Sequence[int]) -> Steps[None]:
    """Fill `whole`, of which each rank has its own part: at step s rank r sends part r - s."""
    p, r = group.size, group.rank
    places = cut(whole, bounds)
    for s in range(p - 1):
        yield from swap(group, places[(r - s) % p], (r + 1) % p, places[(r - s - 1) % p], (r - 1) % p)


def all_reduce(group: Communicator, x: Array) -> Steps[Array]:
    """Reduce-scatter, then all-gather."""
    total, bounds = np.empty_like(x), even_bounds(x.size, group.size)
    yield from _sum_parts(group, x, bounds, total)
    yield from gather_parts(group, total, bounds)
    return total


def reduce_scatter(group: Communicator, x: Array, counts: Sequence[int]) -> Steps[Array]:
    """This rank's part of the sum."""
    total, bounds = np.empty_like(x), bounds_of(counts)
    yield from _sum_parts(group, x, bounds, total)
    return total[bounds[group.rank] : bounds[group.rank + 1]].copy()


def all_gather(group: Communicator, x: Array, counts: Sequence[int]) -> Steps[Array]:
    """All parts, in order of rank."""
    bounds = bounds_of(counts)
    whole = np.empty(bounds[-1], x.dtype)
    whole[bounds[group.rank] : bounds[group.rank + 1]] = x
    yield from gather_parts(group, whole, bounds)
    return whole
