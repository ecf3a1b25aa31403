"""The examples of an epoch in order, in batches, and this rank's share of a batch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .. import random
from ..engine.state import state
from ..engine.tensor import TENSORS
from ..errors import LayoutError, MeshError, OptionError, ShapeError, typed_errors
from ..layouts.partition import nested_parts, proportional_parts
from ..layouts.rank_values import rank_axes
from ..random.placement import coordinates

__all__ = ["batches", "parts_of", "share"]


@typed_errors
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


@typed_errors
def share(x: Any, axis: str | Sequence[str], shares: Sequence[float] | None = None) -> Any:
    """Return this rank's rows of an array or sequence that every rank has whole.

    The rows are divided as by `numpy.array_split`, or in proportion to `shares`. The result has no layout: label it
    ``Shard(0)`` and state the shape of the whole, ``ag.tensor(share(x, "dp"), {"dp": Shard(0)},
    global_shape=x.shape)``; with `shares` use ``collectives.from_local(share(x, "dp", shares), {"dp": Shard(0)})``, by
    which the ranks agree on the extents.

    Parameters
    ----------
    x : sequence or array
        Anything with a length that can be sliced.
    axis : str or sequence of str
        The mesh axis whose ranks share the rows; or several, in the mesh's order, the first of them the outermost.
    shares : sequence of float, optional
        A number of at least 0 for each rank, the same on all ranks, such as `parallel.report.StepReport.shares`
        returns. Only their ratios matter. A rank may get no rows.

    Raises
    ------
    MeshError
        No mesh is current.
    OptionError, LayoutError
        `shares` is not one such number for each rank, or depends on the rank.

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
    >>> def in_proportion():
    ...     with cc.Mesh(dp=2):
    ...         return data.share(numpy.arange(5), "dp", shares=[1.0, 4.0]).tolist()
    >>> cc.run(in_proportion, ranks=2)
    [[0], [1, 2, 3, 4]]
    """
    grid = state.grid
    if grid is None:
        raise MeshError(f"share(x, {axis!r}): no mesh is current. Fix: with cc.Mesh({axis}=-1): around it")
    axes = (axis,) if isinstance(axis, str) else tuple(axis)
    extents, mine = parts_of(len(x), axes, shares, "share")
    start = sum(extents[:mine])
    return x[start : start + extents[mine]]


def parts_of(
    n: int, axes: tuple[str, ...], shares: Sequence[float] | None, caller: str
) -> tuple[tuple[int, ...], int]:
    """The number of rows of each rank along some axes of the current mesh, out of `n`, and this rank's place."""
    grid = state.grid
    assert grid is not None
    sizes = [grid.sizes[grid.axis(name)] for name in axes]
    mine = 0
    for (_, place), size in zip(coordinates(axes), sizes, strict=True):
        mine = mine * size + int(place)
    if shares is None:
        return nested_parts(n, sizes), mine
    values: Any = shares
    numbers = list(values.array if values.__class__ in TENSORS else values)
    differ = [axis for number in numbers for axis in rank_axes(number)]
    if differ:
        raise LayoutError(
            f"{caller}: shares={shares!r} depends on the rank on axis {differ[0]!r}; needed: the same numbers on every "
            "rank\n  fix: report.shares(axis) of a parallel.report.StepReport"
        )
    if len(numbers) != math.prod(sizes) or not all(0 <= s < math.inf for s in numbers) or not any(numbers):
        raise OptionError(
            f"{caller}: shares={shares!r} was given; needed: {math.prod(sizes)} finite numbers of at least 0, one for "
            f"each rank along {', '.join(map(repr, axes))}, not all 0"
        )
    return proportional_parts(n, [float(s) for s in numbers]), mine
