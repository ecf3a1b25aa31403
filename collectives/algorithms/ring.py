"""Ring algorithms: the array is split into p parts, and every rank sends to its right neighbour only.

The number of bytes is optimal, but there are p - 1 messages instead of lg p, so rings are best for long arrays.
Patarasu and Yuan 2009 ("Bandwidth optimal all-reduce algorithms for clusters of workstations"); Thakur, Rabenseifner
and Gropp 2005 ("Optimization of collective communication operations in MPICH", the sections on allgather and
reduce-scatter).

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
from ..transports.steps import Steps, bounds_of, cut, even_bounds, pieces, receive

__all__ = ["all_gather", "all_reduce", "reduce_scatter"]


def _around(group: Communicator, own: list[Array], places: list[Array], first: int, last: int) -> Steps[None]:
    """Run steps `first` to `last` - 1 of an all-reduce, which has 2(p-1): first p - 1 that sum, then p - 1 that copy.

    At step s, part r - s - 2 arrives at rank r from its left neighbour, and at step s + 1 it is sent to the right one.
    The partial sum of part c starts at rank c + 1 and is complete when it arrives at rank c, at step p - 2. From there
    it goes around once more. A piece is sent as soon as it has been added; receives are posted one step ahead.

    Parameters
    ----------
    own : list of array
        This rank's addends by part. The copying steps do not use them.
    places : list of array
        The arrays for the sums by part. The copying steps start with this rank's part in its place.
    """
    p, r = group.size, group.index
    right, left = (r + 1) % p, (r - 1) % p
    start = (own if first == 0 else places)[(r - first - 1) % p]
    started = [group.lend(start[piece], right) for piece in pieces(start)]
    leaving: dict[int, list[Pending[None]]] = {}

    def post(step: int) -> Steps[list[tuple[slice, Pending[Array]]]]:
        if step == last:
            return []
        part = (r - step - 2) % p
        yield from leaving.pop(part, [])  # wait for the sends of the partial sum from this place
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
    """Fill `whole`, of which each rank has its own part in place."""
    yield from _around(group, [], cut(whole, bounds), group.size - 1, 2 * (group.size - 1))


def all_reduce(group: Communicator, request: Request, x: Array, out: Array) -> Steps[Array]:
    """A reduce-scatter, then an all-gather."""
    bounds = even_bounds(x.size, group.size)
    yield from _around(group, cut(x, bounds), cut(out, bounds), 0, 2 * (group.size - 1))
    return out


def reduce_scatter(group: Communicator, request: Request, x: Array, out: Array) -> Steps[Array]:
    """This rank's part of the sum."""
    total, bounds = np.empty_like(x), bounds_of(request.counts)
    yield from _around(group, cut(x, bounds), cut(total, bounds), 0, group.size - 1)
    out[:] = total[bounds[group.index] : bounds[group.index + 1]]
    return out


def all_gather(group: Communicator, request: Request, x: Array, out: Array) -> Steps[Array]:
    """All parts, in order of rank."""
    bounds = bounds_of(request.counts)
    out[bounds[group.index] : bounds[group.index + 1]] = x
    yield from gather_parts(group, out, bounds)
    return out
