"""Reproducible sums: the result has the same bits for any number of ranks and any distribution of the addends.

Floating-point addition is not associative, so the bits of a sum depend on the order of additions. Here the order is
fixed by a balanced binary tree over the *global* indices of the addends. Node (level, k) is the sum of the addends from
``k 2^level`` up to ``(k+1) 2^level``. It is the sum of two nodes of the level below, or equal to the left one if the
right one is beyond the last addend. A rank that has all addends of a node may compute it; the additions are the same in
any case. This is pairwise summation (Higham 1993, "The accuracy of floating point summation", section 3), whose error
grows with lg N. Demmel and Nguyen 2013 ("Fast reproducible floating-point summation") describe another method.

Each rank first computes the largest nodes that it can. These are combined by one of two algorithms with the same
result:

`scattered`, for long arrays: part j of every rank's nodes goes to rank j, which computes the rest of the tree for this
part; then the parts are gathered. Let m be the number of nodes per rank: 1 if a rank has one addend or an aligned power
of two of them, at most 2 lg N if its addends are consecutive. With p ranks the time is
``2(p-1) alpha + (m+1) n(p-1)/p beta + (pm-1) n/p gamma``. Each rank sends 2(p-1) messages (more if a part is longer
than a piece) and ``(m+1) n(p-1)/p`` bytes, with one addend per rank as many as a ring.

`along_tree`, for short arrays: nodes go up a binomial tree of the ranks, each rank combines those of its subtree, and
the sum comes down, in ``2 lg p`` rounds. A rank sends the nodes of its subtree (m of n bytes each) up, and the sum to
its children.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from autograd.errors import ShapeError

from ..transports.protocol import Array, Communicator, Pending, Request
from ..transports.steps import Steps, even_bounds, give, pieces, receive, take
from .ring import gather_parts
from .trees import binomial

__all__ = ["Node", "StreamedSum", "all_reduce", "nodes_of", "sum_tree"]

Node = tuple[int, int]
"""(level, place): the addends from ``place << level`` to ``(place + 1) << level``."""


def _additions(nodes: Iterable[Node], count: int) -> list[tuple[Node, Node | None, Node]]:
    """All additions that are possible with some nodes, in order: (left, right, parent); right is None past the end."""
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
    for left, right, parent in _additions(have, count):
        have -= {left, right} if right is not None else {left}
        have.add(parent)
    return sorted(have)


def sum_tree(
    values: Mapping[Node, Array], count: int, owned: Iterable[Node] = (), spare: list[Array] | None = None
) -> dict[Node, Array]:
    """Add nodes as far as possible, and return the largest ones.

    The given arrays are not changed, but for those of the nodes `owned`. To `spare` come arrays of those that are no
    longer needed.
    """
    have = dict(values)
    owned = set(owned)
    for left, right, parent in _additions(have, count):
        total = have.pop(left)
        if right is not None:
            other = have.pop(right)
            total = np.add(total, other, out=total) if left in owned else np.add(total, other)
            if spare is not None and right in owned:
                spare.append(other)
            owned.add(parent)
        elif left in owned:
            owned.add(parent)
        have[parent] = total
    return have


class StreamedSum:
    """The reproducible sum of numbered flat arrays that come one after another.

    An array is added as soon as the tree allows it. If they come in order, lg N + 1 arrays are held at most.

    Parameters
    ----------
    count : int
        The number N of addends of all ranks.
    size : int
    dtype : dtype

    Examples
    --------
    >>> total = StreamedSum(3, size=2, dtype=np.float64)
    >>> for index in range(3):
    ...     x = total.buffer()
    ...     x[:] = index, 1.0
    ...     total.add(index, x)
    >>> total.total(None, [range(3)])
    array([3., 3.])
    """

    def __init__(self, count: int, size: int, dtype: Any):
        self.count, self.size, self.dtype = count, size, dtype
        self.nodes: dict[Node, Array] = {}
        self._spare: list[Array] = []

    def buffer(self) -> Array:
        """An array for the next addend, with any content."""
        return self._spare.pop() if self._spare else np.empty(self.size, self.dtype)

    def add(self, index: int, x: Array) -> None:
        """Add the addend of this number, an array of `buffer`, which from now on is the sum's own."""
        nodes = {**self.nodes, (0, index): x}
        self.nodes = sum_tree(nodes, self.count, owned=nodes, spare=self._spare)

    def total(self, group: Any, indices: Sequence[Sequence[int]]) -> Array:
        """The sum of the addends of all ranks, who call it together; it ends this object.

        Parameters
        ----------
        group : Selected or None
            The ranks: ``axis.using("reproducible")``. None for one rank.
        indices : sequence of sequence of int
            The numbers of every rank's addends.
        """
        nodes, self.nodes, self._spare = self.nodes, {}, []
        if group is None or group.size == 1:
            (only,) = nodes.values()
            return only
        like = np.empty(self.size, self.dtype)
        way = group.algorithm.partition(":")[2]
        total: Array = group.channel.run(sum_nodes(group.channel.messages, nodes, indices, like, way))
        return total


def check_indices(indices: Sequence[Sequence[int]], name: str) -> int:
    """Return the number of addends N. Raises ShapeError, on every rank, unless each of 0..N-1 is an index once."""
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
    """The sum of the addends of all ranks.

    Parameters
    ----------
    group : Communicator
    addends : mapping from global index to array
        The addends of this rank.
    indices : sequence of sequence of int
        The global indices of every rank, checked by `check_indices`.
    like : array
        Its size and dtype are those of the addends; needed if this rank has none.
    way : str
        ``tree`` for `along_tree`; the default is `scattered`.
    """
    mine = sum_tree({(0, index): x for index, x in addends.items()}, sum(map(len, indices)))
    return (yield from sum_nodes(group, mine, indices, like, way))


def sum_nodes(
    group: Communicator, mine: dict[Node, Array], indices: Sequence[Sequence[int]], like: Array, way: str = ""
) -> Steps[Array]:
    """`sum_addends`, given the largest nodes of this rank's addends (`nodes_of`)."""
    if group.size == 1:
        (total,) = mine.values()
        return total.copy()
    return (yield from (along_tree if way == "tree" else scattered)(group, mine, indices, like))


def along_tree(
    group: Communicator, mine: dict[Node, Array], indices: Sequence[Sequence[int]], like: Array
) -> Steps[Array]:
    """Combine nodes up a binomial tree to rank 0, and send the sum down."""
    count = sum(map(len, indices))
    tree = binomial(group.index, group.size, 0)
    for child in tree.children:
        below = range(child, min(2 * child - group.index, group.size))  # the child's subtree
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
    """Send part j of all nodes to rank j, which computes the sum of this part; then gather the parts."""
    p, r = group.size, group.index
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
    """One addend per rank; that of rank r has index r."""
    return (yield from sum_addends(group, {group.index: x}, [[rank] for rank in range(group.size)], x, way))
