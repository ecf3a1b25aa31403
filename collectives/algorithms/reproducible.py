"""Sums whose bits depend on the addends alone: not on the number of ranks, nor on who holds which addend.

Floating-point addition is not associative, so a sum has the bits of its order. Here the order is a balanced binary tree
over the *global* index of the addends: node (level, k) is the sum of the addends from ``k 2^level`` up to
``(k+1) 2^level``, and has the two nodes of the level below as children; a node whose right child lies beyond the last
addend is its left child. Whoever holds all addends of a node may add them; whatever the ranks, the additions are the
same. Demmel and Nguyen 2013 ("Fast reproducible floating-point summation") is another way; the tree is pairwise
summation (Higham 1993, "The accuracy of floating point summation", section 3), whose error grows with lg N.

Each rank adds up the nodes that it holds whole. The rest can travel in two ways, to the same bits.

`scattered`, for long arrays: part j of every rank's nodes goes to rank j, which completes the
tree there, and the parts are gathered. With m nodes a rank (1 where a rank holds one addend, or an aligned power of two
of them; at most 2 lg N where its addends follow each other) and p ranks, the time is
``2(p-1) alpha + (m+1) n(p-1)/p beta + (pm-1) n/p gamma``; each rank sends 2(p-1) messages (more where a part is longer
than a piece) and ``(m+1) n(p-1)/p`` bytes: with one addend a rank, as many as a ring.

`along_tree`, for short ones: nodes go up a binomial tree of the ranks, each of which completes what it can, and the sum
comes down: ``2 lg p`` rounds. A rank sends its subtree's nodes (m of n bytes each) up and the sum to its children.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from autograd.errors import ShapeError

from ..transports.protocol import Array, Communicator, Pending, Request
from .ring import gather_parts
from .steps import Steps, even_bounds, give, pieces, receive, take
from .trees import binomial

__all__ = ["Node", "all_reduce", "nodes_of", "sum_tree"]

Node = tuple[int, int]
"""(level, place): the addends from ``place << level`` to ``(place + 1) << level``."""


def _rise(nodes: Iterable[Node], count: int) -> list[tuple[Node, Node | None, Node]]:
    """The additions that some nodes allow, in order: (left, right, their parent); right is None beyond the end."""
    have, found = set(nodes), []
    for level in range((count - 1).bit_length()):
        width = -(-count // (1 << level))
        for at in sorted(place for at_level, place in have if at_level == level and place % 2 == 0):
            left, right, parent = (level, at), (level, at + 1), (level + 1, at // 2)
            if right in have or at + 1 >= width:
                have -= {left, right}
                have.add(parent)
                found.append((left, right if at + 1 < width else None, parent))
    return found


def nodes_of(indices: Iterable[int], count: int) -> list[Node]:
    """The largest nodes whose addends are all among `indices`.

    Examples
    --------
    >>> nodes_of([0, 1, 2, 3, 4], 8)
    [(0, 4), (2, 0)]
    >>> nodes_of([4], 5)
    [(2, 1)]
    """
    have = {(0, int(i)) for i in indices}
    for left, right, parent in _rise(have, count):
        have -= {left, right} if right is not None else {left}
        have.add(parent)
    return sorted(have)


def sum_tree(values: Mapping[Node, Array], count: int) -> dict[Node, Array]:
    """Add up nodes as far as they go: what is left are the largest ones. The values given are not changed."""
    have = dict(values)
    owned: set[Node] = set()
    for left, right, parent in _rise(have, count):
        total = have.pop(left)
        if right is not None:
            other = have.pop(right)
            total = np.add(total, other, out=total) if left in owned else np.add(total, other)
            owned.add(parent)
        elif left in owned:
            owned.add(parent)
        have[parent] = total
    return have


def check_indices(indices: Sequence[Sequence[int]], name: str) -> int:
    """The number of addends; ShapeError, the same on every rank, if their indices are not each of 0..N-1 once."""
    everyone = [int(i) for mine in indices for i in mine]
    count = len(everyone)
    if count == 0 or sorted(everyone) != list(range(count)):
        raise ShapeError(
            f"a reproducible sum on '{name}' was given the addends "
            + "; ".join(f"rank {rank}: {list(map(int, mine))}" for rank, mine in enumerate(indices))
            + f"\n  needed: each global index from 0 to {max(count - 1, 0)} once, on one rank"
            "\n  fix: number the addends over all ranks, for example indices=range(rank, count, ranks)"
        )
    return count


def sum_addends(
    group: Communicator, addends: Mapping[int, Array], indices: Sequence[Sequence[int]], like: Array, way: str = ""
) -> Steps[Array]:
    """The sum of all ranks' addends.

    Parameters
    ----------
    way : str
        ``tree`` for `along_tree`; `scattered` without it.
    addends : mapping from global index to array
        This rank's.
    indices : sequence of sequence of int
        Every rank's global indices, checked by `check_indices`.
    like : array
        Tells the size and dtype where this rank has no addends.
    """
    count = sum(map(len, indices))
    mine = sum_tree({(0, index): x for index, x in addends.items()}, count)
    if group.size == 1:
        (total,) = mine.values()
        return total.copy()
    return (yield from (along_tree if way == "tree" else scattered)(group, mine, indices, like))


def along_tree(
    group: Communicator, mine: dict[Node, Array], indices: Sequence[Sequence[int]], like: Array
) -> Steps[Array]:
    """Nodes go up to rank 0, the sum comes down."""
    count = sum(map(len, indices))
    tree = binomial(group.rank, group.size, 0)
    for child in tree.children:
        below = range(child, min(2 * child - group.rank, group.size))  # the child's subtree
        nodes = nodes_of([index for rank in below for index in indices[rank]], count)
        arrived = np.empty((len(nodes), like.size), like.dtype)
        yield from take(group, arrived.reshape(-1), child)
        mine = sum_tree({**mine, **dict(zip(nodes, arrived, strict=True))}, count)
    total = np.empty(like.size, like.dtype)
    if tree.parent is None:
        (total[:],) = mine.values()
    else:
        if mine:
            yield from give(group, np.concatenate([mine[node] for node in sorted(mine)]), tree.parent)
        yield from take(group, total, tree.parent)
    for child in reversed(tree.children):
        yield from give(group, total, child)
    return total


def scattered(
    group: Communicator, mine: dict[Node, Array], indices: Sequence[Sequence[int]], like: Array
) -> Steps[Array]:
    """Part j of all nodes goes to rank j, which completes the tree there; then the parts are gathered."""
    p, r = group.size, group.rank
    count = sum(map(len, indices))
    nodes = [nodes_of(theirs, count) for theirs in indices]
    bounds = even_bounds(like.size, p)
    share = slice(bounds[r], bounds[r + 1])
    arrived = [np.empty((len(nodes[rank]), share.stop - share.start), like.dtype) for rank in range(p)]
    coming: list[Pending[Array]] = []
    leaving: list[Pending[None]] = []
    for step in range(1, p):
        flat = arrived[(r - step) % p].reshape(-1)
        coming += [receive(group, flat[piece], (r - step) % p) for piece in pieces(flat)]
    for step in range(1, p):
        to = (r + step) % p
        if not nodes[r]:
            break
        packed = np.concatenate([mine[node][bounds[to] : bounds[to + 1]] for node in nodes[r]])
        leaving += [group.lend(packed[piece], to) for piece in pieces(packed)]
    yield from coming
    parts = {node: arrived[rank][k] for rank in range(p) if rank != r for k, node in enumerate(nodes[rank])}
    parts.update((node, mine[node][share]) for node in nodes[r])
    whole = np.empty(like.size, like.dtype)
    (whole[share],) = sum_tree(parts, count).values()
    yield from leaving
    yield from gather_parts(group, whole, bounds)
    return whole


def all_reduce(group: Communicator, request: Request, x: Array, out: Array, way: str = "") -> Steps[Array]:
    """One addend a rank: rank r's is number r."""
    return (yield from sum_addends(group, {group.rank: x}, [[rank] for rank in range(group.size)], x, way))
