"""Trees: sums go up to the root, results come down; whole, or in segments that follow each other (pipelined).

Binomial and k-ary trees: Thakur, Rabenseifner and Gropp 2005 (the sections on broadcast and reduce). Pipelining: Chan,
Heimlich, Purkayastha and van de Geijn 2007 ("Collective communication: theory, practice, and experience"). Two trees:
Sanders, Speck and Traeff 2009 ("Two-tree algorithms for full bandwidth broadcast, reduction and scan").

With h the height of the tree, c the most children a rank has, and k the number of segments:

==================  ===========================================================  ==============  =================
all_reduce          time                                                         messages        bytes sent
==================  ===========================================================  ==============  =================
binomial            2 lg p (alpha + n beta) + lg p n gamma                       lg p            n lg p
k-ary, whole        2 h c (alpha + n beta) + h c n gamma                         c + 1           (c + 1) n
chain, k segments   2 (p-2+k) (alpha + n/k beta) + (p-2+k) n/k gamma             2k              2n
binary, k segments  2 (h-1+k) 2 (alpha + n/k beta) + (h-1+k) 2 n/k gamma         3k              3n
two trees, k each   2 (h-1+k) (2 alpha + n/k beta) + (h-1+k) n/k gamma           4k              2n
==================  ===========================================================  ==============  =================

Messages and bytes are those of the rank that sends most. A broadcast or a reduce is one half of an all-reduce.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from collectives.communicator import Array, Communicator, Pending

from .steps import Steps, piece_count, segments

__all__ = ["Tree", "all_reduce", "binomial", "broadcast", "chain", "double_trees", "k_ary", "reduce"]


class Tree(NamedTuple):
    """One rank's place in a tree."""

    parent: int | None
    children: tuple[int, ...]


TreeOf = Callable[[int, int, int], Tree]
"""``tree(rank, ranks, root)``"""


def k_ary(arity: int) -> TreeOf:
    """Seat v, counted from the root, has the seats arity v + 1 to arity v + arity under it."""

    def tree(rank: int, ranks: int, root: int) -> Tree:
        seat = (rank - root) % ranks
        below = range(arity * seat + 1, min(arity * seat + arity + 1, ranks))
        return Tree((((seat - 1) // arity) + root) % ranks if seat else None, tuple((v + root) % ranks for v in below))

    return tree


chain = k_ary(1)


def binomial(rank: int, ranks: int, root: int) -> Tree:
    """Seat v is under the seat that lacks v's lowest bit; it has as many children as v has zeros below that bit.

    Children come smallest subtree first: it is the first to be summed.
    """
    seat = (rank - root) % ranks
    lowest = seat & -seat if seat else 1 << ranks.bit_length()
    steps = [1 << k for k in range(lowest.bit_length() - 1)]
    children = tuple((seat + step + root) % ranks for step in steps if seat + step < ranks)
    return Tree((seat - lowest + root) % ranks if seat else None, children)


def _in_order(seat: int, ranks: int) -> Tree:
    """The binary tree whose in-order traversal is 1..ranks: even seats are inside, odd ones are leaves."""
    low, high, parent = 1, ranks, None
    while True:
        span = high - low + 1
        middle = low + (1 << (span.bit_length() - 1)) - 1
        if seat == middle:
            children = [_in_order_root(a, b) for a, b in ((low, middle - 1), (middle + 1, high)) if a <= b]
            return Tree(parent, tuple(children))
        parent = middle
        low, high = (low, middle - 1) if seat < middle else (middle + 1, high)


def _in_order_root(low: int, high: int) -> int:
    return low + (1 << ((high - low + 1).bit_length() - 1)) - 1


def double_trees(rank: int, ranks: int) -> list[Tree]:
    """Two binary trees such that no rank is inside both: each carries one half of the array.

    The first has rank r on seat r + 1. The second is its mirror image where the number of ranks is even, else it is
    turned by one: either way the ranks on even seats, those inside, are the others.
    """
    def placed(seat_of: Callable[[int], int], rank_of: Callable[[int], int]) -> Tree:
        tree = _in_order(seat_of(rank), ranks)
        parent = None if tree.parent is None else rank_of(tree.parent)
        return Tree(parent, tuple(rank_of(seat) for seat in tree.children))

    first = placed(lambda r: r + 1, lambda seat: seat - 1)
    if ranks % 2 == 0:
        return [first, placed(lambda r: ranks - r, lambda seat: ranks - seat)]
    return [first, placed(lambda r: (r + 1) % ranks + 1, lambda seat: (seat - 2) % ranks)]


# -- up and down -------------------------------------------------------------------------------------------------------
# Several trees are worked on at once: at round i, segment i of each. Two ranks may be neighbours in both trees, so
# sends and receives keep to one order, round by round and tree by tree; receives are posted one round ahead.


def _up(group: Communicator, trees: Sequence[Tree], xs: Sequence[Array], totals: Sequence[Array], count: int,
        ) -> Steps[None]:  # fmt: skip
    """Leave the sum of a rank's subtree in `totals`, the whole sum at the root."""
    cuts = [segments(x.size, count) for x in xs]
    rounds = max(map(len, cuts))
    longest = [max((s.stop - s.start for s in cut), default=0) for cut in cuts]
    buffers = [[np.empty((2, n), x.dtype) for _ in t.children] for t, x, n in zip(trees, xs, longest, strict=True)]

    def post(i: int) -> list[list[Pending[Array]]]:
        posted: list[list[Pending[Array]]] = []
        for tree, cut, scratch in zip(trees, cuts, buffers, strict=True):
            n = cut[i].stop - cut[i].start if i < len(cut) else 0
            posted.append([group.start("recv", scratch[k][i % 2, :n], child)
                           for k, child in enumerate(tree.children) if n])  # fmt: skip
        return posted

    leaving: list[Pending[None]] = []
    coming = post(0) if rounds else []
    for i in range(rounds):
        now, coming = coming, post(i + 1)
        for tree, x, total, cut, arrivals in zip(trees, xs, totals, cuts, now, strict=True):
            if i >= len(cut):
                continue
            part = x[cut[i]]
            for pending in arrivals:
                yield pending
                part = np.add(part, pending.wait(), out=total[cut[i]])
            if tree.parent is not None:
                leaving.append(group.lend(part, tree.parent))
            elif not arrivals:
                total[cut[i]] = part
    yield from leaving


def _down(group: Communicator, trees: Sequence[Tree], totals: Sequence[Array], count: int) -> Steps[None]:
    """Copy the root's `totals` to all ranks."""
    cuts = [segments(total.size, count) for total in totals]
    rounds = max(map(len, cuts))

    def post(i: int) -> list[Pending[Array] | None]:
        return [None if tree.parent is None or i >= len(cut) else group.start("recv", total[cut[i]], tree.parent)
                for tree, total, cut in zip(trees, totals, cuts, strict=True)]  # fmt: skip

    leaving: list[Pending[None]] = []
    coming = post(0) if rounds else []
    for i in range(rounds):
        now, coming = coming, post(i + 1)
        for tree, total, cut, pending in zip(trees, totals, cuts, now, strict=True):
            if i >= len(cut):
                continue
            if pending is not None:
                yield pending
            # the child with the largest subtree first: it has the longest way to go
            leaving += [group.lend(total[cut[i]], child) for child in reversed(tree.children)]
    yield from leaving


# -- the operations ----------------------------------------------------------------------------------------------------


def _count(x: Array, count: int | None) -> int:
    """The number of segments: as given, or so that a segment has `SEGMENT_BYTES` at most."""
    return piece_count(x.nbytes) if count is None else count


def reduce(group: Communicator, x: Array, root: int, tree_of: TreeOf, count: int | None) -> Steps[Array | None]:
    """The sum, on the root."""
    total = np.empty_like(x)
    yield from _up(group, [tree_of(group.rank, group.size, root)], [x], [total], _count(x, count))
    return total if group.rank == root else None


def broadcast(group: Communicator, x: Array, root: int, tree_of: TreeOf, count: int | None) -> Steps[Array]:
    """The root's array, written to the others'."""
    whole = x.copy() if group.rank == root else x
    yield from _down(group, [tree_of(group.rank, group.size, root)], [whole], _count(x, count))
    return whole


def all_reduce(group: Communicator, x: Array, tree_of: TreeOf, count: int | None) -> Steps[Array]:
    """A reduce to rank 0 and a broadcast from there."""
    total, trees = np.empty_like(x), [tree_of(group.rank, group.size, 0)]
    yield from _up(group, trees, [x], [total], _count(x, count))
    yield from _down(group, trees, [total], _count(x, count))
    return total


def double_all_reduce(group: Communicator, x: Array, count: int | None) -> Steps[Array]:
    """One half on each of two trees, so that every rank is inside one and sends as much as it receives."""
    total, trees, half = np.empty_like(x), double_trees(group.rank, group.size), x.size // 2
    xs, totals = [x[:half], x[half:]], [total[:half], total[half:]]
    count = _count(xs[1], count)
    yield from _up(group, trees, xs, totals, count)
    yield from _down(group, trees, totals, count)
    return total

