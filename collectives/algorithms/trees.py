"""Tree algorithms: sums go up to the root and results come down, as whole arrays or in pipelined segments.

Binomial and k-ary trees: Thakur, Rabenseifner and Gropp 2005 (the sections on broadcast and reduce). Pipelining: Chan,
Heimlich, Purkayastha and van de Geijn 2007 ("Collective communication: theory, practice, and experience"). Two trees:
Sanders, Speck and Traeff 2009 ("Two-tree algorithms for full bandwidth broadcast, reduction and scan").

With h the height of the tree, c the largest number of children of a rank, and k the number of segments:

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

from ..transports.protocol import Array, Communicator, Pending, Request
from ..transports.steps import Steps, piece_count, receive, segments

__all__ = ["Tree", "all_reduce", "binomial", "broadcast", "chain", "double_trees", "k_ary", "reduce"]


class Tree(NamedTuple):
    """The parent and the children of one rank in a tree."""

    parent: int | None
    children: tuple[int, ...]


TreeOf = Callable[[int, int, int], Tree]
"""``tree(rank, ranks, root)``"""


def k_ary(arity: int) -> TreeOf:
    """The k-ary tree. Seats are counted from the root; the children of seat v are arity v + 1 to arity v + arity."""

    def tree(rank: int, ranks: int, root: int) -> Tree:
        seat = (rank - root) % ranks
        below = range(arity * seat + 1, min(arity * seat + arity + 1, ranks))
        return Tree((((seat - 1) // arity) + root) % ranks if seat else None, tuple((v + root) % ranks for v in below))

    return tree


chain = k_ary(1)


def binomial(rank: int, ranks: int, root: int) -> Tree:
    """The binomial tree. The parent of seat v is v without its lowest bit; v has a child for each zero below that bit.

    Children are ordered by the size of their subtrees, the smallest first, since its sum is complete first.
    """
    seat = (rank - root) % ranks
    lowest = seat & -seat if seat else 1 << ranks.bit_length()
    steps = [1 << k for k in range(lowest.bit_length() - 1)]
    children = tuple((seat + step + root) % ranks for step in steps if seat + step < ranks)
    return Tree((seat - lowest + root) % ranks if seat else None, children)


def _in_order(seat: int, ranks: int) -> Tree:
    """The binary tree whose in-order traversal is 1..ranks: even seats are inner nodes, odd ones are leaves."""

    def root(low: int, high: int) -> int:
        return low + (1 << ((high - low + 1).bit_length() - 1)) - 1

    low, high, parent = 1, ranks, None
    while True:
        middle = root(low, high)
        if seat == middle:
            return Tree(parent, tuple([root(a, b) for a, b in ((low, middle - 1), (middle + 1, high)) if a <= b]))
        parent = middle
        low, high = (low, middle - 1) if seat < middle else (middle + 1, high)


def double_trees(rank: int, ranks: int) -> list[Tree]:
    """Two binary trees, one for each half of the array, such that no rank is an inner node of both.

    The first has rank r on seat r + 1. The second is its mirror image if the number of ranks is even, and shifted by
    one rank otherwise. In both cases the inner nodes, those on even seats, are leaves of the first tree.
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


def _up(group: Communicator, tree: Tree, x: Array, total: Array, count: int) -> Steps[list[Pending[None]]]:
    """Write the sum of this rank's subtree to `total` (at the root, the whole sum). Returns the pending sends."""
    cuts = segments(x.size, count)
    longest = max((piece.stop - piece.start for piece in cuts), default=0)
    buffers = [np.empty((2, longest), x.dtype) for _ in tree.children]

    def post(i: int) -> list[Pending[Array]]:
        return [receive(group, buffer[i % 2, : cuts[i].stop - cuts[i].start], child)
                for buffer, child in zip(buffers, tree.children, strict=True)] if i < len(cuts) else []  # fmt: skip

    leaving: list[Pending[None]] = []
    coming = post(0)
    for i, piece in enumerate(cuts):
        arriving, coming = coming, post(i + 1)  # one piece ahead
        part = x[piece]
        for pending in arriving:
            yield pending
            part = np.add(part, pending.wait(), out=total[piece])
        if tree.parent is not None:
            leaving.append(group.lend(part, tree.parent))
        elif not arriving:
            total[piece] = part
    return leaving


def _down(group: Communicator, trees: Sequence[Tree], totals: Sequence[Array], count: int) -> Steps[None]:
    """Copy the root's `totals` to all ranks. Trees in which this rank has no children are waited for last."""
    cuts = [segments(total.size, count) for total in totals]
    coming = [[] if tree.parent is None else [receive(group, total[piece], tree.parent) for piece in cut]
              for tree, total, cut in zip(trees, totals, cuts, strict=True)]  # fmt: skip
    leaving: list[Pending[None]] = []
    for k in sorted(range(len(trees)), key=lambda k: not trees[k].children):
        for i, piece in enumerate(cuts[k]):
            if coming[k]:
                yield coming[k][i]
            # the child with the largest subtree first, since its subtree is the deepest
            leaving += [group.lend(totals[k][piece], child) for child in reversed(trees[k].children)]
    yield from leaving


# -- the operations ----------------------------------------------------------------------------------------------------


def _count(x: Array, count: int | None) -> int:
    """The number of segments: the given one, or so that a segment has at most `SEGMENT_BYTES`."""
    return piece_count(x.nbytes) if count is None else count


def reduce(
    group: Communicator, request: Request, x: Array, out: Array | None, tree_of: TreeOf, count: int | None
) -> Steps[Array | None]:
    """A reduce: the sum on the root."""
    total = np.empty_like(x) if out is None else out
    yield from (yield from _up(group, tree_of(group.index, group.size, request.root), x, total, _count(x, count)))
    return out


def broadcast(
    group: Communicator, request: Request, x: None, out: Array, tree_of: TreeOf, count: int | None
) -> Steps[Array]:
    """The root's array, written to the others'."""
    yield from _down(group, [tree_of(group.index, group.size, request.root)], [out], _count(out, count))
    return out


def all_reduce(
    group: Communicator, request: Request, x: Array, out: Array, tree_of: TreeOf, count: int | None
) -> Steps[Array]:
    """A reduce to rank 0, then a broadcast from rank 0."""
    tree = tree_of(group.index, group.size, 0)
    yield from (yield from _up(group, tree, x, out, _count(x, count)))
    yield from _down(group, [tree], [out], _count(x, count))
    return out


def double_all_reduce(group: Communicator, request: Request, x: Array, out: Array, count: int | None) -> Steps[Array]:
    """An all-reduce of one half of the array on each of two trees, so that every rank sends as much as it receives.

    A rank first sends in the tree in which it is a leaf, since a leaf waits for nothing. Messages of the two trees
    cannot be confused: no rank receives from the same rank in both trees in the same direction, since the receiver (up)
    or the sender (down) is an inner node of one tree only.
    """
    trees, half = double_trees(group.index, group.size), x.size // 2
    xs, totals = [x[:half], x[half:]], [out[:half], out[half:]]
    count = _count(xs[1], count)
    leaving = []
    for k in sorted((0, 1), key=lambda k: len(trees[k].children)):
        leaving += yield from _up(group, trees[k], xs[k], totals[k], count)
    yield from leaving
    yield from _down(group, trees, totals, count)
    return out
