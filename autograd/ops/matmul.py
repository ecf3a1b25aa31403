"""Matrix products: `matmul`, and `linear` (``x @ w + b`` in one step)."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

from numpy import empty, ndarray

from ..engine.broadcasting import ones, unbroadcast
from ..engine.primitive import op
from ..kernels import blas
from ..layouts.layout import Mix, Sum
from .shape import broadcast_to, swapaxes

_CONTRACTED = Sum("k")


def _dims(shapes: Sequence[tuple[int, ...]], options: Any) -> Any:
    a, b = shapes
    batch = max(len(a), len(b), 2) - 2
    left = tuple(range(batch - (len(a) - 2), batch)) + (batch, _CONTRACTED) if len(a) > 1 else (_CONTRACTED,)
    columns = batch + (1 if len(a) > 1 else 0)
    right = tuple(range(batch - (len(b) - 2), batch)) + (_CONTRACTED, columns) if len(b) > 1 else (_CONTRACTED,)
    return [left, right]


def _rows(x: Any) -> Any:
    """A NumPy array as a matrix: all dimensions but the last merged into rows."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def _adjoint_of_a(ct: Any, y: Any, a: Any, b: Any) -> Any:
    if b.ndim == 2 and ct.ndim == 2 and a.ndim == 2:
        return ct @ b.T
    if b.ndim == 2 and a.ndim > 2 and ct.__class__ is b.__class__ is ndarray:
        return _rows(ct).dot(b.T).reshape(a.shape)
    if b.ndim == 1:
        return ct * b if a.ndim == 1 else ct.reshape((*ct.shape, 1)) * b
    if a.ndim == 1:
        g = b @ ct.reshape((*ct.shape, 1))
        g = g.reshape(g.shape[:-1])
    else:
        g = ct @ swapaxes(b, -1, -2)
    return unbroadcast(g, a.shape)


def _adjoint_of_b(ct: Any, y: Any, a: Any, b: Any) -> Any:
    if a.ndim == 2 and ct.ndim == 2 and b.ndim == 2:
        return a.T @ ct
    if b.ndim == 2 and a.ndim > 2 and ct.__class__ is a.__class__ is ndarray:
        return _rows(a).T.dot(_rows(ct))  # one product instead of one per batch and their sum
    if a.ndim == 1:
        if b.ndim == 1:
            return ct * a
        g = a.reshape((a.shape[0], 1)) @ ct.reshape((*ct.shape[:-1], 1, ct.shape[-1]))
        return unbroadcast(g, b.shape)
    if b.ndim == 1:
        g = swapaxes(a, -1, -2) @ ct.reshape((*ct.shape, 1))
        return unbroadcast(g.reshape(g.shape[:-1]), b.shape)
    return unbroadcast(swapaxes(a, -1, -2) @ ct, b.shape)


matmul = op("matmul", "a b", operator.matmul, (_adjoint_of_a, _adjoint_of_b), saves="01", dims=_dims, operands="x w")


# -- a linear layer ------------------------------------------------------------------------------------------


_MIN_ROWS_ADDED = 256
"""From this number of rows on, the result is filled with the bias and BLAS adds the product: one pass fewer."""


def _linear(x: Any, w: Any, b: Any) -> Any:
    if x.__class__ is w.__class__ is b.__class__ is ndarray and w.ndim == 2 and w.shape[1:] == b.shape:
        try:
            if x.ndim == 2:
                if len(x) >= _MIN_ROWS_ADDED:
                    return _product_plus_bias(x, w, b)
                y = x.dot(w)  # the same as x @ w with less overhead per call
                y += b
                return y
            if x.ndim > 2:  # one product instead of one per batch
                y = _product_plus_bias(_rows(x), w, b)
                return y.reshape(*x.shape[:-1], y.shape[1])
        except ValueError:  # shapes do not fit: matmul, called next, raises the error that says so
            pass
    return NotImplemented


def _product_plus_bias(x: Any, w: Any, b: Any) -> Any:
    if len(x) >= _MIN_ROWS_ADDED and x.dtype == w.dtype == b.dtype and blas.adds_products(x.dtype):
        y = empty((len(x), len(b)), x.dtype)
        y[...] = b
        blas.add_product(x, w, y)
    else:
        y = x.dot(w)
        y += b
    return y


def _linear_dims(shapes: Sequence[tuple[int, ...]], options: Any) -> Any:
    last = len(shapes[0]) - 1
    return [(*range(last), Mix), (Mix, last), (last,)]


def _linear_adjoint_of_x(ct: Any, y: Any, x: Any, w: Any, b: Any) -> Any:
    if ct.__class__ is not ndarray:
        return _adjoint_of_a(ct, y, x, w)
    return ct.dot(w.T) if ct.ndim == 2 else _rows(ct).dot(w.T).reshape(x.shape)


def _linear_adjoint_of_w(ct: Any, y: Any, x: Any, w: Any, b: Any) -> Any:
    if ct.__class__ is not ndarray:
        return _adjoint_of_b(ct, y, x, w)
    return x.T.dot(ct) if ct.ndim == 2 else _rows(x).T.dot(_rows(ct))


def _linear_adjoint_of_b(ct: Any, y: Any, x: Any, w: Any, b: Any) -> Any:
    if ct.__class__ is not ndarray:
        return ct.sum(axis=tuple(range(ct.ndim - 1)))
    if ct.ndim != 2:
        ct = _rows(ct)
    return ones(len(ct), ct.dtype).dot(ct)


linear = op(
    "linear", "N N N", _linear, (_linear_adjoint_of_x, _linear_adjoint_of_w, _linear_adjoint_of_b),
    saves="01", dims=_linear_dims, operands="x w b",
    instead=lambda x, w, b: matmul(x, w) + b,
    tangent=(
        lambda dx, y, x, w, b: dx @ w, lambda dw, y, x, w, b: x @ dw,
        lambda db, y, x, w, b: broadcast_to(db, (*x.shape[:-1], *db.shape)),
    ),
)  # fmt: skip
"""Return ``x @ w + b`` in one step, which saves one array and one node per layer.

x is [..., n], w [n, m], b [m]; the result is [..., m]. Adjoints: ``ct @ w.T`` for x, ``x.T @ ct`` and ``sum(ct)`` over
all rows for w and b.

Its word is "N N N": because b is added, it is linear in none of its operands alone. So no operand may be Partial and
the contracted dimension may not be sharded. Where the layouts need that, or where a listener records events,
``matmul(x, w) + b`` runs instead.
"""
