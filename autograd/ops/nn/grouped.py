"""Grouped products: rows that are sorted by group are multiplied with the matrix of their group (mixture of experts).

==================  ===================================================  ==========================================
operation           operands                                             result
==================  ===================================================  ==========================================
`grouped_linear`    x [n, k], weight [groups, k, m], bias [groups, m]    [n, m]: each row with the matrix of its group
`grouped_matmul`    x [n, k], weight [groups, k, m]                      the same without bias
`grouped_outer`     x [n, k], y [n, m]                                   [groups, k, m]: ``x.T @ y`` of each group
==================  ===================================================  ==========================================

The last operand of each, counts [groups], says how many rows each group has. The rows of a group are contiguous, and
groups follow each other in order. A group may have no rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...arrays.capture import checked, recorded
from ...arrays.device import move, on_host
from ...arrays.half import in_float32
from ...arrays.products import product
from ...arrays.shape_only import Shaped
from ...engine.primitive import Primitive, op
from ...engine.tensor import TENSORS
from ...errors import DtypeError, ShapeError
from ...layouts.layout import Mix
from ..arguments import labelled, operand, raw
from ..shape import swapaxes
from .embedding import add_rows, take_rows

Shape = tuple[int, ...]


def _runs(counts: Any) -> Iterator[tuple[int, int, int]]:
    """Of each group with rows: its number, its first row, and the row after its last."""
    end = 0
    for g, n in enumerate(counts.tolist()):
        if n:
            yield g, end, end + n
        end += n


def _empty(shape: Shape, dtype: Any, *arrays: Any) -> Any:
    """A new array on the device of the operands. Shape-only if one of them is."""
    shaped = next((a for a in arrays if type(a) is Shaped), None)
    if shaped is not None:
        return Shaped(shape, dtype, shaped.why)
    return np.empty_like(arrays[0], shape=shape, dtype=dtype, order="C")


def _write(out: Any, a: Any, b: Any) -> None:
    """Write the product of two matrices to `out`."""
    if out.__class__ is np.ndarray:
        np.matmul(a, b, out=out)
    else:
        out[...] = product(a, b)


@in_float32
def _matmul(x: Any, weight: Any, counts: Any) -> Any:
    y = _empty((x.shape[0], weight.shape[2]), np.result_type(x.dtype, weight.dtype), x, weight, counts)
    if type(y) is not Shaped:
        for g, start, end in _runs(counts):
            _write(y[start:end], x[start:end], weight[g])
    return y


@in_float32
def _outer(x: Any, y: Any, counts: Any) -> Any:
    shape = (counts.shape[0], x.shape[1], y.shape[1])
    out = _empty(shape, np.result_type(x.dtype, y.dtype), x, y, counts)
    if type(out) is not Shaped:
        filled = 0
        for g, start, end in _runs(counts):
            out[filled:g] = 0
            _write(out[g], x[start:end].T, y[start:end])
            filled = g + 1
        out[filled:] = 0
    return out


@in_float32
def _linear(x: Any, weight: Any, bias: Any, counts: Any) -> Any:
    y = _matmul(x, weight, counts)
    if type(y) is not Shaped and type(bias) is not Shaped:
        for g, start, end in _runs(counts):
            y[start:end] += bias[g]
    return y


def _group_of_row(counts: Any, x: Any) -> Any:
    """The group of each row, from the counts, labelled as these."""
    n = raw(counts)
    if type(n) is Shaped:
        return labelled(Shaped(x.shape[:1], np.int64, n.why), counts)
    return labelled(move(recorded(_repeated, n), raw(x)), counts)


def _repeated(counts: Any) -> Any:
    return np.repeat(np.arange(len(counts)), counts)


def _require_counts(counts: Any, n: int) -> None:
    if int(counts.sum()) != n or (counts < 0).any():
        raise ShapeError(
            f"grouped_linear: counts {counts.tolist()} were given for {n} rows; needed: numbers >= 0 that sum to {n}"
        )


def _dims(shapes: Sequence[Shape], options: Any) -> Any:
    """No dimension may be sharded: the counts are those of all rows. A rank that groups its own rows has them as V."""
    return [(Mix,) * len(shape) for shape in shapes]


grouped_matmul: Primitive = op(
    "grouped_matmul", "a b S", _matmul,
    (lambda ct, y, x, weight, counts: grouped_matmul(ct, swapaxes(weight, 1, 2), counts),
     lambda ct, y, x, weight, counts: grouped_outer(x, ct, counts), None),
    saves="012", dims=_dims, operands="x weight counts", promotes=False,
)  # fmt: skip
grouped_outer: Primitive = op(
    "grouped_outer", "a b S", _outer,
    (lambda ct, out, x, y, counts: grouped_matmul(y, swapaxes(ct, 1, 2), counts),
     lambda ct, out, x, y, counts: grouped_matmul(x, ct, counts), None),
    saves="012", dims=_dims, operands="x y counts", promotes=False,
)  # fmt: skip
_grouped_linear: Primitive = op(
    "grouped_linear", "N N N S", _linear,
    (lambda ct, y, x, weight, bias, counts: grouped_matmul(ct, swapaxes(weight, 1, 2), counts),
     lambda ct, y, x, weight, bias, counts: grouped_outer(x, ct, counts),
     lambda ct, y, x, weight, bias, counts: add_rows(ct, _group_of_row(counts, ct), options=(weight.shape[0],)), None),
    saves="013", dims=_dims, operands="x weight bias counts", promotes=False,
    instead=lambda x, weight, bias, counts: (
        grouped_matmul(x, weight, counts) + take_rows(bias, _group_of_row(counts, x))
    ),
    tangent=(
        lambda dx, y, x, weight, bias, counts: grouped_matmul(dx, weight, counts),
        lambda dw, y, x, weight, bias, counts: grouped_matmul(x, dw, counts),
        lambda db, y, x, weight, bias, counts: take_rows(db, _group_of_row(counts, x)), None,
    ),
)  # fmt: skip


def grouped_linear(x: Any, weight: Any, bias: Any, counts: Any) -> Any:
    """Return ``x @ weight[g] + bias[g]`` for the rows of each group g: the linear layers of experts, in one step.

    Parameters
    ----------
    x : [n, k]
        The rows of group 0, then those of group 1, and so on.
    weight : [groups, k, m]
    bias : [groups, m], or None
    counts : [groups], integers
        The number of rows of each group, which may be 0. They sum to n. They are on the host, also if the other
        operands are on a GPU: the bounds of the groups are plain numbers.

    Returns
    -------
    [n, m]
        Where the rows of x are sharded, each rank groups its own rows by its own counts.

    Raises
    ------
    ShapeError
        The shapes do not fit, or the counts are negative or do not sum to n.
    DtypeError
        The counts are not integers.

    Notes
    -----
    Adjoints: for x the same with transposed matrices, ``ct @ weight[g].T``; for the weight ``x.T @ ct`` of the rows of
    each group, zeros where it has none; for the bias the sum of their cotangents. One matrix product for each group
    that has rows (Gale et al. 2022, *MegaBlocks*, compute the same with block-sparse products).

    Examples
    --------
    >>> import numpy
    >>> from autograd import ops
    >>> x, weight = numpy.ones((3, 2)), numpy.array([numpy.eye(2), numpy.zeros((2, 2)), 5 * numpy.eye(2)])
    >>> ops.grouped_linear(x, weight, None, numpy.array([1, 0, 2])).tolist()
    [[1.0, 1.0], [5.0, 5.0], [5.0, 5.0]]
    """
    x, weight = operand(x), operand(weight)
    counts = counts if counts.__class__ in TENSORS else on_host(counts, "grouped_linear", "counts")
    on_host(raw(counts), "grouped_linear", "counts")
    shapes = [tuple(map(int, raw(each).shape)) for each in (x, weight, counts)]
    (n, k), groups = shapes[0] if len(shapes[0]) == 2 else (-1, -1), shapes[1][0] if shapes[1] else -1
    if raw(counts).dtype.kind not in "iu":
        text = f"grouped_linear: counts of dtype {raw(counts).dtype} were given; needed: integers"
        raise DtypeError(text)
    if n < 0 or len(shapes[1]) != 3 or shapes[1][1] != k or shapes[2] != (groups,):
        raise ShapeError(
            f"grouped_linear: x {shapes[0]}, weight {shapes[1]} and counts {shapes[2]} were given; needed: [n, k], "
            "[groups, k, m] and [groups]"
        )
    given = raw(counts)
    if type(given) is not Shaped:
        checked(_require_counts, given, n)
    if bias is None:
        return grouped_matmul(x, weight, counts)
    bias = operand(bias)
    if tuple(raw(bias).shape) != (groups, shapes[1][2]):
        raise ShapeError(
            f"grouped_linear: a bias of shape {tuple(raw(bias).shape)} was given with weight {shapes[1]}; needed: "
            f"{(groups, shapes[1][2])}"
        )
    return _grouped_linear(x, weight, bias, counts)


__all__ = ["grouped_linear", "grouped_matmul", "grouped_outer"]
