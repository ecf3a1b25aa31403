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

from ..transports.protocol import Array, Communicator, Pending, Request
from .steps import Steps, bounds_of, cut, even_bounds, pieces, receive

__all__ = ["all_gather", "all_reduce", "reduce_scatter"]


def _around(group: Communicator, own: list[Array], places: list[Array], first: int, last: int) -> Steps[None]:
    """Steps `first` to `last` - 1 of an all-reduce, 2(p-1) in all: p - 1 that sum, then p - 1 that copy.

    At step s part r - s - 2 arrives from the left neighbour, and goes on to the right one at step s + 1. The partial
    sum of part c starts at rank c + 1 and is whole when it arrives at rank c, at step p - 2; from there it goes around
    once more. A piece goes on as soon as it has been added; receives are posted one step ahead.

    Parameters
    ----------
    own : list of array
        This rank's addends, by part; not needed by the steps that copy.
    places : list of array
        Where sums arrive and are written, by part. The copying steps start from this rank's part in its place.
    """
    p, r = group.size, group.rank
    right, left = (r + 1) % p, (r - 1) % p
    start = (own if first == 0 else places)[(r - first - 1) % p]
    started = [group.lend(start[piece], right) for piece in pieces(start)]
    leaving: dict[int, list[Pending[None]]] = {}

    def post(step: int) -> Steps[list[tuple[slice, Pending[Array]]]]:
        if step == last:
            return []
        part = (r - step - 2) % p
        yield from leaving.pop(part, [])  # its partial sum, sent from this place p steps ago
        return [(piece, receive(group, places[part][piece], left)) for piece in pieces(places[part])]

    coming = yield from post(first)
    for step in range(first, last):
        part, arriving = (r - step - 2) % p, coming
        coming = yield from post(step + 1)
        for piece, pending in arriving:
            yield pending
            if step < p - 1:
                np.add(own[part][piece], places[part][piece], out=places[part][piece])
            if step + 1 < last:
                leaving.setdefault(part, []).append(group.lend(places[part][piece], right))
    yield from started
    for sends in leaving.values():
        yield from sends


def gather_parts(group: Communicator, whole: Array, bounds: Sequence[int]) -> Steps[None]:
    """Fill `whole`, of which each rank has its own part."""
    yield from _around(group, [], cut(whole, bounds), group.size - 1, 2 * (group.size - 1))


def all_reduce(group: Communicator, request: Request, x: Array, out: Array) -> Steps[Array]:
    """Reduce-scatter, then all-gather."""
    bounds = even_bounds(x.size, group.size)
    yield from _around(group, cut(x, bounds), cut(out, bounds), 0, 2 * (group.size - 1))
    return out


def reduce_scatter(group: Communicator, request: Request, x: Array, out: Array) -> Steps[Array]:
    """This rank's part of the sum."""
    total, bounds = np.empty_like(x), bounds_of(request.counts)
    yield from _around(group, cut(x, bounds), cut(total, bounds), 0, group.size - 1)
    out[:] = total[bounds[group.rank] : bounds[group.rank + 1]]
    return out


def all_gather(group: Communicator, request: Request, x: Array, out: Array) -> Steps[Array]:
    """All parts, in order of rank."""
    bounds = bounds_of(request.counts)
    out[bounds[group.rank] : bounds[group.rank + 1]] = x
    yield from gather_parts(group, out, bounds)
    return out
