"""Rows of a table selected by index (embeddings); the table and the indices may have different layouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...arrays.device import require_one_device
from ...arrays.shape_only import Shaped
from ...engine.primitive import Primitive, op
from ...errors import ShapeError
from ...layouts.layout import Mix, Sum
from ..indexing import sum_rows

Shape = tuple[int, ...]


def _take_dims(shapes: Sequence[Shape], options: Any) -> Any:
    n = len(shapes[1])
    return [(Mix, *range(n, n + len(shapes[0]) - 1)), tuple(range(n))]


def _take(x: Any, index: Any) -> Any:
    if index.__class__ is not x.__class__:  # CuPy would copy an index on the host to the device
        require_one_device("take_rows", x=x, index=index)
    return x[index]


def require_range(index: Any, count: int, what: str) -> None:
    """Raise ShapeError unless each index is in 0..count - 1."""
    if index.size and (index.max() >= count or index.min() < 0):
        raise ShapeError(f"{what} from {index.min()} to {index.max()} were given; needed: 0..{count - 1}")


def _add(ct: Any, index: Any, rows: int) -> Any:
    """An array of `rows` zero rows to which every row of `ct` is added at its index."""
    n = len(index.shape)
    shape = (rows, *ct.shape[n:])
    if type(ct) is Shaped or type(index) is Shaped:
        return Shaped(shape, ct.dtype, ct.why if type(ct) is Shaped else index.why)
    return sum_rows(ct.reshape((index.size, *ct.shape[n:])), index.reshape(-1), rows)


def _add_dims(shapes: Sequence[Shape], options: Any) -> Any:
    n = len(shapes[1])
    sums = tuple(Sum(i) for i in range(n))
    return [(*sums, *range(1, 1 + len(shapes[0]) - n)), sums]


add_rows: Primitive = op(
    "add_rows", "a S", _add, (lambda ct, y, x, index, rows: take_rows(ct, index), None), saves="1", dims=_add_dims,
    operands="x index", promotes=False,
)  # fmt: skip
take_rows: Primitive = op(
    "take_rows", "a S", _take,
    (lambda ct, y, x, index: add_rows(ct, index, options=(x.shape[0],)), None), saves="01", dims=_take_dims,
    operands="x index", promotes=False,
)  # fmt: skip
"""Return the rows ``x[index]``. Where `index` is sharded, so is the result, and the cotangent of x is Partial.

x is [rows, ...], index an array of integers of any shape; the result is ``[*index.shape, ...]``. Adjoint: `add_rows`.
"""



# -- of a table of which this is a part: -1 is the index of a row that the part does not have ------------------------


def _take_own(x: Any, index: Any) -> Any:
    """The rows ``x[index]``, and zeros where the index is negative."""
    if type(x) is Shaped or type(index) is Shaped:
        return Shaped((*index.shape, *x.shape[1:]), x.dtype, x.why if type(x) is Shaped else index.why)
    own = index >= 0
    if x.__class__ is not np.ndarray:  # without a look at the indices, for which the host would wait
        return _take(x, index * own) * own.astype(x.dtype).reshape(*own.shape, *[1] * (x.ndim - 1))
    if own.all():
        return x[index]
    found = np.zeros_like(x, shape=(*index.shape, *x.shape[1:]))
    found[own] = x[index[own]]
    return found


def _add_own(ct: Any, index: Any, rows: int) -> Any:
    """`add_rows` of the rows of `ct` whose index is not negative."""
    if type(ct) is Shaped or type(index) is Shaped:
        return _add(ct, index, rows)
    own = index >= 0
    if ct.__class__ is not np.ndarray:  # a row more takes the others: a product with zero would let a NaN stay
        return _add(ct, np.where(own, index, rows), rows + 1)[:rows]
    return _add(ct, index, rows) if own.all() else _add(ct[own], index[own], rows)


add_own_rows: Primitive = op(
    "add_own_rows", "a S", _add_own, (lambda ct, y, x, index, rows: take_own_rows(ct, index), None), saves="1",
    dims=_add_dims, operands="x index", promotes=False,
)  # fmt: skip
take_own_rows: Primitive = op(
    "take_own_rows", "a S", _take_own,
    (lambda ct, y, x, index: add_own_rows(ct, index, options=(x.shape[0],)), None), saves="01", dims=_take_dims,
    operands="x index", promotes=False,
)  # fmt: skip
"""Return the rows ``x[index]`` of a part of a table, and zeros where the index is -1: the row is in another part.

The sum of the results of all parts has the rows of the whole table. Adjoint: `add_own_rows`, which leaves out the
cotangents of the other rows.
"""

__all__ = ["add_own_rows", "add_rows", "require_range", "take_own_rows", "take_rows"]
