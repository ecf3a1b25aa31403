"""One-sided reads of other ranks' parts (`get`), and the adjoint, one-sided additions to them.

Each rank chooses what it reads from which rank; the owner does not take part. All ranks of the axis make the call,
because their parts must be accessible at that time. All of them also take part in the adjoint: in a sweep each rank
adds the cotangent of what it read to the parts that it read, or zeros if no cotangent arrived.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from autograd.engine.tensor import TENSORS, Tensor
from autograd.errors import LayoutError, ShapeError, typed_errors
from autograd.layouts.inference import axes_in
from autograd.layouts.layout import C, I, P, R, Shard, V
from autograd.layouts.messages import describe
from autograd.layouts.rank_values import rank_axes

from ..declaration.call import Call
from ..declaration.collective import Asked, Collective
from ..declaration.staging import InShape, flat
from ..mesh import Axis
from ..transports.protocol import Request, Runs
from .arguments import AxisName, check_rank, operand
from .casts import cast
from .extents import extents_along

__all__ = ["get"]

Shape = tuple[int, ...]


class Places(NamedTuple):
    """The runs of elements that this rank reads, the shape of the result, and the shape of this rank's own part."""

    runs: Runs
    taken: Shape
    part: Shape


# -- the declarations --------------------------------------------------------------------------------------------------


class _OneSided(Collective):
    """A collective whose ranks may read different places and amounts, so the fingerprint contains neither."""

    def fingerprint(self, x: Any, call: Call, recorded: bool | None) -> str:
        how = "in a backward sweep" if recorded is None else "recorded" if recorded else "not recorded"
        return f"{self.name}(axis={'*'.join(call.axes)!r} dtype={x.dtype}) {how}"


GET = _OneSided(
    "get", (V, Shard), V, shape=lambda shape, call: call.options.taken, alone=None,
    resizes=lambda call, labels: range(len(call.options.part)),
)  # fmt: skip
ACCUMULATE = _OneSided("accumulate", (V,), V, shape=lambda shape, call: call.options.part, alone=None)


@GET.asks
def _(x: Any, call: Call) -> Asked:
    return Request("get", flat(x), options=(call.options.runs,)), InShape(call.options.taken)


@GET.adjoint
def _(ct: Any, call: Call) -> Any:
    return ACCUMULATE(ct, call)


@ACCUMULATE.asks
def _(ct: Any, call: Call) -> Asked:
    count = math.prod(call.options.part)
    request = Request("accumulate", flat(ct), options=(call.options.runs, count))
    return request, InShape(call.options.part)


@ACCUMULATE.adjoint
def _(ct: Any, call: Call) -> Any:
    return GET(ct, call)


# -- public functions ------------------------------------------------------------------------------------------


@typed_errors
def get(x: Any, axis: AxisName, source: Any, index: Any = ...) -> Tensor:
    """V -> V: read from the part of another rank of the axis. Each rank may read from another place.

    Formula: ``y = x_source[index]``. Adjoint: the cotangents of all ranks that read a place are added to the cotangent
    of the source there (one-sided accumulate, V -> V).

    Parameters
    ----------
    x : Tensor or array
        This rank's part, which the others may read. All ranks have the same dtype and number of dimensions. A plain
        array is V.
    axis : str or tuple of str
        The mesh axis, or several flattened into one.
    source : int, or array of int
        The rank to read from; it may be this rank. If `index` is an array of rows, an array gives one source per row.
    index : int, slice, Ellipsis, a tuple of them, or array of int
        An index into the source's part, as in NumPy. An array of integers (not in a tuple) takes rows, with the shape
        of the array; an empty one reads nothing. The default is the whole part.

    Returns
    -------
    Tensor
        V on the axis, with the dtype of `x` and the shape that NumPy's indexing gives.

    Raises
    ------
    MeshError
        A source is no rank of the axis.
    ShapeError
        An index is outside the source's part, or is none of the kinds above.
    LayoutError
        `x` is R, I or P on the axis; or `source` or `index` differs between the ranks of another axis, on which `x`
        is I or P.

    Notes
    -----
    The bytes that are read, and one message for each run of contiguous elements. If `x` is V, the ranks exchange their
    shapes first. Over MPI it uses a window with passive targets, Get and Accumulate (MPI standard 4.1, chapter 12). MPI
    does not fix the order of additions in the adjoint, so sums of three or more addends may differ in the last bit. On
    threads the order is that of the ranks.

    Examples
    --------
    >>> import numpy as np
    >>> import autograd as ag, collectives as cc
    >>> def program():
    ...     with cc.Mesh(dp=3) as mesh:
    ...         rank = mesh.axis("dp").rank
    ...         table = ag.tensor(10.0 * int(rank) + np.arange(3.0))
    ...         return cc.get(table, "dp", (rank + 1) % 3, slice(1, 3)).numpy().tolist()
    >>> cc.run(program, ranks=3)
    [[11.0, 12.0], [21.0, 22.0], [1.0, 2.0]]
    """
    x, on = operand(x, axis, "get")
    GET.check(x, on)
    x = _apart(x, on, source, index)
    shapes = _shapes(x, on)
    source, index = (a.array if a.__class__ in TENSORS else a for a in (source, index))
    rows = np.asarray(index) if isinstance(index, list | np.ndarray) else None
    if rows is None and np.ndim(source) == 0:
        check_rank(int(source) if isinstance(source, np.ndarray) else source, on, "get", "source")
        runs, taken = _basic(int(source), shapes[int(source)], index)
    else:
        runs, taken = _rows(source, index if rows is None else rows, shapes, on)
    result: Tensor = GET(x, Call(on.names, on.group, options=Places(runs, taken, tuple(x.array.shape))))
    return result


def _apart(x: Tensor, on: Axis, source: Any, index: Any) -> Tensor:
    """Cast `x` from Replicated to Varying on other axes along which the ranks read different places."""
    assert x.layout is not None
    axes = set(axes_in(x.layout.grid, rank_axes((source, index))))
    for given in (source, index):
        if given.__class__ in TENSORS and given.layout is not None:
            axes |= {a for a, label in given.layout.items() if label is not R and label is not I and label is not C}
    for axis in axes - set(on.names):
        have = x.layout[axis]
        if have is I or have is P:
            raise LayoutError(
                f"get({x.name or 'x'}: {describe(x.array, x.array.shape, x.layout)}, axis {'*'.join(on.names)!r}) with "
                f"a source or index that differs between the ranks of axis {axis!r}\n  axis {axis!r}: x is {have.word},"
                f" and the ranks would read different places of it. Needed: Replicated or Varying\n  fix: "
                f"{'cast(x, ' if have is I else 'all_reduce(x, '}{axis!r}, to=R)"
            )
        if have is R:
            x = cast(x, axis, V)
    return x


def _shapes(x: Tensor, on: Axis) -> list[Shape]:
    """The shape of each rank's part: from the labels if they are Shard, otherwise exchanged by the ranks."""
    shape, layout = tuple(int(n) for n in x.array.shape), x.layout
    assert layout is not None
    if on.group.size == 1:
        return [shape]
    label = layout[on.names[0]]
    if isinstance(label, Shard) and all(isinstance(layout[a], Shard) for a in on.names):
        extents, _ = extents_along(x, on, label.dim, GET)
        return [(*shape[: label.dim], n, *shape[label.dim + 1 :]) for n in extents]
    on.group.agree(lambda: f"get(axis={'*'.join(on.names)!r} dimensions={len(shape)})")
    size = on.group.size
    gathered = on.group.all_gather(np.array(shape, np.int64), [len(shape)] * size).reshape(size, len(shape))
    return [tuple(map(int, each)) for each in gathered]


def _basic(source: int, shape: Shape, index: Any) -> tuple[Runs, Shape]:
    """The runs of elements that integers and slices select in one part, and the shape of the result."""
    key = index if isinstance(index, tuple) else (index,)
    if any(k is not Ellipsis and not isinstance(k, int | np.integer | slice) or isinstance(k, bool) for k in key):
        raise ShapeError(
            f"get: index={index!r} was given; needed: integers, slices and an Ellipsis, or one array of integers, "
            "which takes rows"
        )
    given = sum(k is not Ellipsis for k in key)
    if given > len(shape) or len(key) - given > 1:
        raise ShapeError(f"get: index={index!r} was given for a part of shape {shape} on rank {source}")
    at = next((i for i, k in enumerate(key) if k is Ellipsis), len(key))
    key = (*key[:at], *(slice(None),) * (len(shape) - given), *key[at + 1 :])
    chosen, taken = [], []
    for k, n in zip(key, shape, strict=True):
        if isinstance(k, slice):
            chosen.append(np.arange(*k.indices(n)))
            taken.append(len(chosen[-1]))
        else:
            chosen.append(np.array([_checked(int(k), n, source, shape)]))
    block = 1  # contiguous elements: the trailing dimensions that are taken whole
    while chosen and len(chosen[-1]) == shape[len(chosen) - 1] and np.array_equal(
        chosen[-1], np.arange(shape[len(chosen) - 1])
    ):  # fmt: skip
        block *= len(chosen.pop())
    starts = np.zeros((), np.int64)
    stride = block
    for dim in reversed(range(len(chosen))):
        starts = chosen[dim].reshape(-1, *(1,) * starts.ndim) * stride + starts
        stride *= shape[dim]
    return _merged(np.full(starts.size, source), starts.ravel(), block), tuple(taken)


def _rows(source: Any, index: Any, shapes: list[Shape], on: Axis) -> tuple[Runs, Shape]:
    """The runs of elements of the rows, each from its own source, and the shape of the result."""
    sources, rows = np.asarray(source), np.asarray(index)
    if rows.size == 0:
        rows = rows.astype(np.int64)
    if rows.dtype.kind not in "iu" or sources.dtype.kind not in "iu":
        raise ShapeError(
            f"get: source={source!r}, index={index!r} were given; needed: integers, as one array of rows and one source"
            " for all or for each of them"
        )
    sources, rows = np.broadcast_arrays(sources, rows)
    for rank in np.unique(sources).tolist():
        check_rank(rank, on, "get", "a source")
    used = [shapes[r] for r in np.unique(sources)] or [shapes[on.group.index]]
    if any(len(shape) == 0 for shape in used) or len({shape[1:] for shape in used}) > 1:
        raise ShapeError(f"get: the parts have shapes {used}, so their rows differ; needed: rows of one shape")
    rest = used[0][1:]
    extents = np.array([shape[0] if shape else 0 for shape in shapes])[sources]
    wrong = np.flatnonzero((rows.ravel() < -extents.ravel()) | (rows.ravel() >= extents.ravel()))
    if wrong.size:
        rank = int(sources.ravel()[wrong[0]])
        _checked(int(rows.ravel()[wrong[0]]), shapes[rank][0], rank, shapes[rank])
    block = int(np.prod(rest, dtype=np.int64))
    starts = (np.where(rows < 0, rows + extents, rows) * block).ravel()
    return _merged(sources.ravel(), starts, block), (*rows.shape, *rest)


def _checked(k: int, n: int, source: int, shape: Shape) -> int:
    if not -n <= k < n:
        raise ShapeError(
            f"get: index {k} was given for a dimension of extent {n}; rank {source} holds a part of shape {shape}"
        )
    return k % n


def _merged(sources: np.ndarray, starts: np.ndarray, block: int) -> Runs:
    """Merge blocks that follow each other in one part into one run."""
    if block == 0 or starts.size == 0:
        return ()
    breaks = np.flatnonzero((np.diff(starts) != block) | (np.diff(sources) != 0)) + 1
    begins = np.concatenate([[0], breaks])
    counts = np.diff(np.concatenate([begins, [starts.size]])) * block
    return tuple(zip(sources[begins].tolist(), starts[begins].tolist(), counts.tolist(), strict=True))
