"""Recursive doubling and recursive halving: in lg p steps, ranks whose numbers differ in one bit exchange data.

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

If p is not a power of two, q is the largest power of two below it. Each of the p - q extra ranks sends its array to a
neighbour before the exchange and receives the result after it, which adds 2 alpha + 2n beta + n gamma to an all-reduce.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..transports.protocol import Array, Communicator, Pending, Request
from ..transports.steps import Steps, adder, bounds_of, even_bounds, give, piece_count, receive, segments, swap, take

__all__ = ["all_gather", "halving_doubling", "recursive_doubling", "reduce_scatter"]


class Fold:
    """The mapping of p ranks to q seats, the largest power of two that is at most p.

    Each of the first p - q seats is shared by a pair of neighbours, an even rank and the odd rank after it.

    Attributes
    ----------
    size : int
        The number of seats, q.
    seat : int
        This rank's seat. In a pair, the even rank exchanges data for both.
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
        """The rank that exchanges data for a seat."""
        return 2 * seat if seat < self.pairs else seat + self.pairs

    def bounds(self, bounds: Sequence[int]) -> list[int]:
        """The bounds of the seats' parts, from those of the ranks' parts; the two parts of a pair are adjacent."""
        return [bounds[self.rank(seat)] for seat in range(self.size)] + [bounds[-1]]


def _fold_in(group: Communicator, fold: Fold, x: Array) -> Steps[Array]:
    """The array with which this rank's seat starts: its own plus its partner's."""
    if fold.partner is None:
        return x
    if not fold.works:
        yield from give(group, x, fold.partner)
        return x
    theirs = np.empty_like(x)
    yield from take(group, theirs, fold.partner, adder(x, theirs, theirs))
    return theirs


def _fold_out(group: Communicator, fold: Fold, result: Array, kept: Array) -> Steps[None]:
    """The rank that works sends `result` to its partner, which receives it into `kept`."""
    if fold.partner is not None:
        yield from give(group, result, fold.partner) if fold.works else take(group, kept, fold.partner)


def recursive_doubling(group: Communicator, request: Request, x: Array, out: Array) -> Steps[Array]:
    """All-reduce for short arrays: at step k, ranks that differ in bit k exchange their whole sums.

    Both ranks add the same two sums, and floating-point addition is commutative, so all ranks get the same bits.
    """
    fold = Fold(group.index, group.size)
    buffer = np.empty_like(x)
    source = yield from _fold_in(group, fold, x)
    width = 1
    while fold.works and width < fold.size:
        peer = fold.rank(fold.seat ^ width)
        yield from swap(group, source, peer, buffer, peer)
        source = np.add(source, buffer, out=out)
        width *= 2
    if fold.works and source is not out:
        out[:] = source
    yield from _fold_out(group, fold, out, out)
    return out


def _messages(bounds: Sequence[int], seat: int, width: int, itemsize: int, is_rising: bool) -> list[slice]:
    """The messages for the block of `width` parts that contains the part of `seat`, in the order of sending.

    A short block is one message. A long block is split at the boundaries of the later exchanges, so that each message
    can be forwarded as soon as it has arrived. When halving, the half that the seat sends next comes first and its own
    part last; when doubling (`is_rising`), the order is reversed.
    """
    low, half = seat & -width, width // 2
    start, stop = bounds[low], bounds[low + width]
    count = piece_count((stop - start) * itemsize)
    if half == 0 or count <= 1:
        return [slice(start + piece.start, start + piece.stop) for piece in segments(stop - start, count)]
    seats = (seat, seat ^ half) if is_rising else (seat ^ half, seat)
    return [message for each in seats for message in _messages(bounds, each, half, itemsize, is_rising)]


def _is_within(message: slice, other: slice) -> bool:
    return bool(other.start <= message.start and message.stop <= other.stop)


def _halve(
    group: Communicator, fold: Fold, x: Array, bounds: Sequence[int], total: Array, then: Callable[[slice], Any]
) -> Steps[dict[int, list[Pending[None]]]]:
    """Recursive halving: write each seat's part of the sum to its place in `total`.

    The seats of a block hold sums of the same parts. Each seat exchanges with the seat at distance `width`, in the
    other half of the block: it sends the parts of that half, and adds what it receives to the parts of its own half.
    All receives are posted at once. A message goes through all its exchanges before the next message is waited for, so
    that links stay busy when a rank is late. `then` is called with every slice of `total` that is complete.

    Returns the sends that may not have completed, by width.
    """
    seat, widest = fold.seat, fold.size // 2
    leaving: dict[int, list[Pending[None]]] = {}
    if widest == 0:
        total[:] = x
        return leaving
    coming: dict[int, deque[tuple[slice, Pending[Array]]]] = {}
    going: dict[int, deque[slice]] = {}
    for width in (widest >> k for k in range(widest.bit_length())):
        peer, start = fold.rank(seat ^ width), bounds[seat & -width]
        into = total[start:] if width == widest else np.empty(bounds[(seat & -width) + width] - start, x.dtype)
        coming[width] = deque((message, receive(group, into[message.start - start : message.stop - start], peer))
                              for message in _messages(bounds, seat, width, x.itemsize, False))  # fmt: skip
        going[width], leaving[width] = deque(_messages(bounds, seat ^ width, width, x.itemsize, False)), []

    def leave(source: Array, width: int, done: slice) -> None:
        while going[width] and _is_within(going[width][0], done):
            leaving[width].append(group.lend(source[going[width].popleft()], fold.rank(seat ^ width)))

    def settle(source: Array, width: int, done: slice) -> Steps[None]:
        """Run the exchanges from `width` on for the slice `done`, which has completed the earlier ones."""
        while coming[width] and _is_within(coming[width][0][0], done):
            message, pending = coming[width].popleft()
            yield pending
            np.add(source[message], pending.wait(), out=total[message])
            if width > 1:
                leave(total, width // 2, message)
                yield from settle(total, width // 2, message)
            else:
                then(message)

    leave(x, widest, slice(0, x.size))
    yield from settle(x, widest, slice(0, x.size))
    return leaving


class _Doubling:
    """Recursive doubling: fill `whole`, of which each seat has its own part; every exchange doubles a seat's parts."""

    def __init__(self, group: Communicator, fold: Fold, whole: Array, bounds: Sequence[int]):
        self._group, self._fold, self._whole, self._bounds = group, fold, whole, bounds
        self._widths = [1 << k for k in range(fold.size.bit_length() - 1)]
        self._going = {width: deque(self._messages(fold.seat, width)) for width in self._widths}
        self._leaving: list[Pending[None]] = []

    def _messages(self, seat: int, width: int) -> list[slice]:
        return _messages(self._bounds, seat, width, self._whole.itemsize, True)

    def go(self, done: slice) -> None:
        """Send the slice `done`, which is in its place now, to all seats that need it."""
        for width, messages in self._going.items():
            peer = self._fold.rank(self._fold.seat ^ width)
            while messages and _is_within(messages[0], done):
                self._leaving.append(self._group.lend(self._whole[messages.popleft()], peer))

    def _post(self, width: int, before: dict[int, list[Pending[None]]]) -> Steps[list[tuple[slice, Pending[Array]]]]:
        size, seat = self._fold.size, self._fold.seat ^ width
        if width >= size:
            return []
        if width < size // 2:  # the widest exchange of the halving sent from the operand, not from `whole`
            yield from before.pop(width, [])
        return [(message, receive(self._group, self._whole[message], self._fold.rank(seat)))
                for message in self._messages(seat, width)]  # fmt: skip

    def run(self, before: dict[int, list[Pending[None]]]) -> Steps[None]:
        """Run all exchanges. Receives are posted one exchange ahead, once earlier sends from their places are done."""
        seat, bounds = self._fold.seat, self._bounds
        coming = yield from self._post(1, before)
        for width in self._widths:
            arriving = coming
            coming = yield from self._post(2 * width, before)
            self.go(slice(bounds[seat & -width], bounds[(seat & -width) + width]))
            for message, pending in arriving:
                yield pending
                self.go(message)
        for sends in (self._leaving, *before.values()):
            yield from sends


def halving_doubling(group: Communicator, request: Request, x: Array, out: Array) -> Steps[Array]:
    """Rabenseifner's all-reduce: a reduce-scatter by halving, then an all-gather by doubling."""
    fold = Fold(group.index, group.size)
    source = yield from _fold_in(group, fold, x)
    if fold.works:
        bounds = even_bounds(x.size, fold.size)
        doubling = _Doubling(group, fold, out, bounds)
        leaving = yield from _halve(group, fold, source, bounds, out, doubling.go)
        yield from doubling.run(leaving)
    yield from _fold_out(group, fold, out, out)
    return out


def reduce_scatter(group: Communicator, request: Request, x: Array, out: Array) -> Steps[Array]:
    """Recursive halving. The seat of a pair computes the parts of both ranks, and sends the odd rank its part."""
    fold, bounds = Fold(group.index, group.size), bounds_of(request.counts)
    total = np.empty_like(x)
    source = yield from _fold_in(group, fold, x)
    if fold.works:
        leaving = yield from _halve(group, fold, source, fold.bounds(bounds), total, lambda message: None)
        for sends in leaving.values():
            yield from sends
    out[:] = total[bounds[group.index] : bounds[group.index + 1]]
    if fold.partner is not None:
        theirs = total[bounds[fold.partner] : bounds[fold.partner + 1]]
        yield from _fold_out(group, fold, theirs, out)
    return out


def all_gather(group: Communicator, request: Request, x: Array, out: Array) -> Steps[Array]:
    """All-gather by recursive doubling."""
    fold, bounds = Fold(group.index, group.size), bounds_of(request.counts)
    out[bounds[group.index] : bounds[group.index + 1]] = x
    if fold.partner is not None:
        if fold.works:
            yield from take(group, out[bounds[fold.partner] : bounds[fold.partner + 1]], fold.partner)
        else:
            yield from give(group, x, fold.partner)
    if fold.works:
        yield from _Doubling(group, fold, out, fold.bounds(bounds)).run({})
    yield from _fold_out(group, fold, out, out)
    return out
