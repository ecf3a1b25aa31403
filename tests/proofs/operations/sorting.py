"""Cases of sorting, order statistics and selection of elements by index."""

from __future__ import annotations

from typing import Any

import numpy

import autograd.numpy as np
from autograd.ops.sorting import _scatter_op

from .base import apart, case, normal, numpy_case, strided

_ORDER = numpy.array([[2, 0, 0], [1, 1, 2]])
_ROWS: list[tuple[str, str, Any, tuple[int, ...]]] = [
    ("take_along_axis", "by a host array", lambda np, x: np.take_along_axis(x, _ORDER, 1), (2, 3)),
    ("take_along_axis", "a host array that spreads", lambda np, x: np.take_along_axis(x, _ORDER[:1], 1), (2, 3)),
    ("take_along_axis", "sort", lambda np, x: np.sort(x), (2, 3)),
    ("take_along_axis", "sort along", lambda np, x: np.sort(x, 0), (3, 2)),
    ("take_along_axis", "sort of all", lambda np, x: np.sort(x, None), (2, 3)),
    ("take_along_axis", "sort of nothing", lambda np, x: np.sort(x), (0,)),
    ("take_along_axis", "partition", lambda np, x: np.partition(x, 1), (2, 4)),
    ("take_along_axis", "median", lambda np, x: np.median(x), (2, 3)),
    ("take_along_axis", "median along", lambda np, x: np.median(x, 1, keepdims=True), (2, 3)),
    ("take_along_axis", "quantile", lambda np, x: np.quantile(x, 0.3), (5,)),
    ("take_along_axis", "quantiles", lambda np, x: np.quantile(x, [0.2, 0.5], axis=0), (4, 2)),
    ("take_along_axis", "percentile", lambda np, x: np.percentile(x, 40.0), (2, 3)),
    ("take_along_axis", "choose, a host array", lambda np, x: np.choose([1, 0, 1], [x, x * x]), (3,)),
    ("getitem", "take by a host array", lambda np, x: np.take(x, [[0, 2], [5, 5]]), (2, 3)),
    ("getitem", "take along, a host array", lambda np, x: np.take(x, [2, 0], 1), (2, 3)),
    ("getitem", "take one", lambda np, x: np.take(x, 1, 0), (2, 3)),
    ("getitem", "compress, a host array", lambda np, x: np.compress([True, False, True], x, 1), (2, 3)),
    ("getitem", "extract, a host array", lambda np, x: np.extract([True, False, True], x), (3,)),
    ("where", "select of a host array", lambda np, x: np.select([_ORDER > 1, _ORDER > 0], [x, x * x], 2.0), (2, 3)),
    ("where", "piecewise of a host array", lambda np, x: np.piecewise(x, [_ORDER > 0], [lambda z: z * z, 1.0]), (2, 3)),
]
for _operation, _label, _f, _shape in _ROWS:
    numpy_case(_operation, _label, _f, apart(*_shape))
case("take_along_axis", "sort, strided", np.sort, numpy.sort, strided(apart(2, 3)))
case("take_along_axis", "msort", np.msort, lambda x: numpy.sort(x, 0), apart(3, 2))


def _added(x: Any) -> Any:
    out = numpy.zeros((2, 4), x.dtype)
    for i in range(2):
        for j in range(3):
            out[i, _ORDER[i, j]] += x[i, j]
    return out


case("scatter_along_axis", "by a host array", lambda x: _scatter_op(x, _ORDER, options=(1, (2, 4))), _added,
     normal(2, 3))  # fmt: skip
case("scatter_along_axis", "by its order",
     lambda x: _scatter_op(x, np.argsort(x, 0), options=(0, (4, int(x.shape[1])))),
     lambda x: _put(x, numpy.argsort(x, 0)), apart(3, 2))  # fmt: skip


def _put(x: Any, index: Any) -> Any:
    out = numpy.zeros((4, 2), x.dtype)
    numpy.put_along_axis(out, index, x, 0)
    return out
