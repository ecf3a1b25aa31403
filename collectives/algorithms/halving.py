"""Recursive doubling and recursive halving: ranks that differ in one bit exchange, lg p times.

Thakur, Rabenseifner and Gropp 2005 ("Optimization of collective communication operations in MPICH", the sections on
allgather, reduce-scatter and allreduce); Rabenseifner 2004 ("Optimization of collective reduction operations").

==================  =========================================================  =============  ====================
algorithm           time                                                       messages       bytes sent
==================  =========================================================  =============  ====================
recursive doubling  lg p (alpha + n beta + n gamma)                            lg p           n lg p
halving             lg p alpha + n(p-1)/p beta + n(p-1)/p gamma                lg p           n(p-1)/p
doubling (gather)   lg p alpha + n(p-1)/p beta                                 lg p           n(p-1)/p
halving-doubling    2 lg p alpha + 2n(p-1)/p beta + n(p-1)/p gamma             2 lg p         2n(p-1)/p
==================  =========================================================  =============  ====================

Where p is no power of two, q is the power of two below it, and the p - q ranks too many fold: each hands its array to a
neighbour before and gets its result after, which adds 2 alpha + 2n beta + n gamma to an all-reduce.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from collectives.communicator import Array, Communicator

from .steps import Steps, adder, bounds_of, even_bounds, give, swap, take

__all__ = ["all_gather", "halving_doubling", "recursive_doubling", "reduce_scatter"]


class Fold:
    """q seats, a power of two, for p ranks: the first p - q seats are shared by a pair of neighbours, even and odd.

    Attributes
    ----------
    size : int
        The number of seats, q.
    seat : int
        This rank's seat. The even rank of a pair works for both.
    partner : int or None
        The other rank of the pair.
    works : bool
        Whether this rank takes part in the exchange between the seats.
    """

    def __init__(self, rank: int, ranks: int):
        self.size = 1 << (ranks.bit_length() - 1)
        self.pairs = ranks - self.size
        is_paired = rank < 2 * self.pairs
        self.seat = rank // 2 if is_paired else rank - self.pairs
        self.partner = rank ^ 1 if is_paired else None
        self.works = not is_paired or rank % 2 == 0

    def rank(self, seat: int) -> int:
        """The rank that works on a seat."""
        return 2 * seat if seat < self.pairs else seat + self.pairs

    def bounds(self, bounds: Sequence[int]) -> list[int]:
        """The bounds of the seats' parts, from those of the ranks' parts: a pair's parts lie side by side."""
        return [bounds[self.rank(seat)] for seat in range(self.size)] + [bounds[-1]]


def _fold_in(group: Communicator, fold: Fold, x: Array) -> Steps[Array]:
    """What this rank's seat starts with: its own array, and its partner's added."""
    if fold.partner is None:
        return x
    if not fold.works:
        yield from give(group, x, fold.partner)
        return x
    theirs = np.empty_like(x)
    yield from take(group, theirs, fold.partner, adder(x, theirs, theirs))
    return theirs


def _fold_out(group: Communicator, fold: Fold, result: Array, kept: Array) -> Steps[None]:
    """The rank that works hands `result` to its partner, who takes it into `kept`."""
    if fold.partner is not None:
        yield from give(group, result, fold.partner) if fold.works else take(group, kept, fold.partner)


def recursive_doubling(group: Communicator, x: Array) -> Steps[Array]:
    """All-reduce for short arrays: at step k, ranks that differ in bit k exchange their whole sums.

    Both add the same two sums, and a + b is b + a to the last bit: the ranks' results are equal.
    """
    fold = Fold(group.rank, group.size)
    total, buffer = np.empty_like(x), np.empty_like(x)
    source = yield from _fold_in(group, fold, x)
    width = 1
    while fold.works and width < fold.size:
        peer = fold.rank(fold.seat ^ width)
        yield from swap(group, source, peer, buffer, peer)
        source = np.add(source, buffer, out=total)
        width *= 2
    if fold.works and source is not total:
        total[:] = source
    yield from _fold_out(group, fold, total, total)
    return total


def _halve(group: Communicator, fold: Fold, x: Array, bounds: Sequence[int], total: Array) -> Steps[None]:
    """Leave each seat's part of the sum in its place of `total`.

    The seats from `low` to `high` hold sums of the same parts. Each exchanges with the seat as far from the middle on
    the other side, gives away the other half's parts, and adds what it gets to its own half's.
    """
    low, high, source = 0, fold.size, x
    buffer = np.empty(x.size if fold.size > 1 else 0, x.dtype)
    while high - low > 1:
        middle = (low + high) // 2
        halves = [(low, middle), (middle, high)]
        is_upper = fold.seat >= middle
        peer = fold.rank(fold.seat + (low - middle if is_upper else middle - low))
        low, high = halves[is_upper]
        other = halves[not is_upper]
        mine, theirs = (slice(bounds[a], bounds[b]) for a, b in ((low, high), other))
        arrived = buffer[: mine.stop - mine.start]
        yield from swap(group, source[theirs], peer, arrived, peer, adder(source[mine], arrived, total[mine]))
        source = total
    if source is x:
        total[:] = x


def _double(group: Communicator, fold: Fold, whole: Array, bounds: Sequence[int]) -> Steps[None]:
    """Fill `whole`, of which each seat has its own part: at every step a seat has twice as many parts."""
    width = 1
    while width < fold.size:
        first, other = fold.seat & -width, (fold.seat ^ width) & -width
        mine, theirs = (whole[bounds[at] : bounds[at + width]] for at in (first, other))
        peer = fold.rank(fold.seat ^ width)
        yield from swap(group, mine, peer, theirs, peer)
        width *= 2


def halving_doubling(group: Communicator, x: Array) -> Steps[Array]:
    """Rabenseifner's all-reduce: reduce-scatter by halving, then all-gather by doubling."""
    fold = Fold(group.rank, group.size)
    total = np.empty_like(x)
    source = yield from _fold_in(group, fold, x)
    if fold.works:
        bounds = even_bounds(x.size, fold.size)
        yield from _halve(group, fold, source, bounds, total)
        yield from _double(group, fold, total, bounds)
    yield from _fold_out(group, fold, total, total)
    return total


def reduce_scatter(group: Communicator, x: Array, counts: Sequence[int]) -> Steps[Array]:
    """Recursive halving; a pair's seat sums both parts, and the odd rank gets its own."""
    fold, bounds = Fold(group.rank, group.size), bounds_of(counts)
    total = np.empty_like(x)
    source = yield from _fold_in(group, fold, x)
    if fold.works:
        yield from _halve(group, fold, source, fold.bounds(bounds), total)
    mine = total[bounds[group.rank] : bounds[group.rank + 1]].copy()
    if fold.partner is not None:
        theirs = total[bounds[fold.partner] : bounds[fold.partner + 1]]
        yield from _fold_out(group, fold, theirs, mine)
    return mine


def all_gather(group: Communicator, x: Array, counts: Sequence[int]) -> Steps[Array]:
    """Recursive doubling of the number of parts that a rank has."""
    fold, bounds = Fold(group.rank, group.size), bounds_of(counts)
    whole = np.empty(bounds[-1], x.dtype)
    whole[bounds[group.rank] : bounds[group.rank + 1]] = x
    if fold.partner is not None:
        if fold.works:
            yield from take(group, whole[bounds[fold.partner] : bounds[fold.partner + 1]], fold.partner)
        else:
            yield from give(group, x, fold.partner)
    if fold.works:
        yield from _double(group, fold, whole, fold.bounds(bounds))
    yield from _fold_out(group, fold, whole, whole)
    return whole
