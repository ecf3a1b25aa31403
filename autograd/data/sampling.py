"""The examples of an epoch in order, in batches, and this rank's share of a batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .. import random
from ..engine.state import state
from ..errors import MeshError, ShapeError
from ..layouts.partition import nested_parts
from ..random.placement import coordinates

__all__ = ["batches", "share"]


def batches(
    key: random.Key, n: int, batch_size: int, *, shuffle: bool = True, drop_last: bool = False
) -> Iterator[np.ndarray]:
    """Iterate over the batches of one epoch: arrays of example indices, the same on every rank.

    `share` takes this rank's part of a batch.

    Parameters
    ----------
    key : random.Key
        A key for this epoch, ``key.at(epoch)``.
    n : int
        Number of examples in the data set.
    batch_size : int
        Number of examples in a batch, over all ranks.
    shuffle : bool
        Whether the order is random.
    drop_last : bool
        Whether to leave out a smaller last batch.

    Yields
    ------
    numpy.ndarray of int64

    Raises
    ------
    ShapeError
        `batch_size` is not positive.

    Examples
    --------
    >>> from autograd import data, random
    >>> [len(b) for b in data.batches(random.Key(0, "train").at(3), 10, 4)]
    [4, 4, 2]
    """
    if batch_size < 1:
        raise ShapeError(f"batches: batch_size={batch_size} was given; needed: at least 1")
    order = random.permutation(key, n) if shuffle else np.arange(n)
    for start in range(0, n - batch_size + 1 if drop_last else n, batch_size):
        yield order[start : start + batch_size]


def share(x: Any, axis: str | Sequence[str]) -> Any:
    """Return this rank's rows of an array or sequence that every rank has whole.

    The rows are divided as by `numpy.array_split`. The result has no layout: label it ``Shard(0)`` and state the shape
    of the whole, ``ag.tensor(share(x, "dp"), {"dp": Shard(0)}, global_shape=x.shape)``.

    Parameters
    ----------
    x : sequence or array
        Anything with a length that can be sliced.
    axis : str or sequence of str
        The mesh axis whose ranks share the rows; or several, in the mesh's order, the first of them the outermost.

    Raises
    ------
    MeshError
        No mesh is current.

    Examples
    --------
    >>> import numpy
    >>> import collectives as cc
    >>> from autograd import data
    >>> def program():
    ...     with cc.Mesh(dp=2):
    ...         return data.share(numpy.arange(5), "dp").tolist()
    >>> cc.run(program, ranks=2)
    [[0, 1, 2], [3, 4]]
    """
    grid = state.grid
    if grid is None:
        raise MeshError(f"share(x, {axis!r}): no mesh is current. Fix: with cc.Mesh({axis}=-1): around it")
    axes = (axis,) if isinstance(axis, str) else tuple(axis)
    sizes = [grid.sizes[grid.axis(name)] for name in axes]
    mine = 0
    for (_, place), size in zip(coordinates(axes), sizes, strict=True):
        mine = mine * size + int(place)
    extents = nested_parts(len(x), sizes)
    start = sum(extents[:mine])
    return x[start : start + extents[mine]]
