"""Norms of vectors and matrices, and condition numbers. At zero the derivative of a norm is taken as 0.

A second derivative at zero, such as that of ``norm(x)**2``, is NaN: see `elementwise.over`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..engine.primitive import op
from ..errors import NotDifferentiable, ShapeError, call_site
from ..layouts.layout import Mix
from .arguments import axes_in_order, instead_of, normal_axes, operand, raw
from .decompositions import svdvals
from .elementwise import absolute, conj, over, power, real, where
from .linalg import inv
from .reductions import any, broadcast_back, max, min, reduction_dims, sum
from .shape import expand_dims, moveaxis, squeeze
from .sorting import reduced_axes_last
from .ufuncs import isnan


def _norm(x: Any, axes: Any, keepdims: bool, shape: Any) -> Any:
    square = np.real(x) ** 2 + np.imag(x) ** 2 if x.dtype.kind == "c" else x * x
    return np.sqrt(np.sum(square, axis=axes, keepdims=keepdims))


def _norm_tangent(dx: Any, y: Any, x: Any, axes: Any, keepdims: bool, shape: Any) -> Any:
    return over(sum(real(dx * conj(x)), axes, keepdims=keepdims), y)


_norm_op = op(
    "norm", "N", _norm,
    lambda ct, y, x, axes, keepdims, shape: broadcast_back(over(ct, y), axes, shape) * conj(x),
    saves="y0", dims=reduction_dims(lambda i: Mix), operands="x", tangent=(_norm_tangent,),
)  # fmt: skip


def _euclidean(x: Any, axes: Any, keepdims: bool) -> Any:
    return _norm_op(x, options=(axes, keepdims, tuple(int(n) for n in raw(x).shape)))


@instead_of(np.linalg.norm, checked=1)
def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    """Return the norm of vectors or matrices, of every order that NumPy has.

    At zero, where the norm has no derivative, it is taken as 0 for the Euclidean norm, which is the default, and the
    orders 0, 1 and inf; for other orders of vectors it is NaN. The derivatives of the matrix norms of order 2 and "nuc"
    are subgradients where they have a kink. Second derivatives of the Euclidean norm at zero are NaN, those of its
    square too.

    Raises
    ------
    ShapeError
        An order is given for an array of more than two dimensions without `axis`.
    """
    x, keepdims = operand(x), bool(keepdims)
    if x.dtype.kind not in "fc":
        x = x.astype(float)
    if axis is None and (ord is None or (ord == "fro" and x.ndim == 2) or (ord == 2 and x.ndim == 1)):
        return _euclidean(x, tuple(range(x.ndim)), keepdims)
    if axis is None and x.ndim > 2:
        text = f"norm of order {ord!r} of {x.ndim} dimensions; needed: axis= with one or two of them"
        raise ShapeError(text + call_site())
    axes = tuple(range(x.ndim)) if axis is None else axes_in_order(axis, x.ndim)
    return _vector_norm(x, ord, axes, keepdims) if len(axes) == 1 else _matrix_norm(x, ord, axes, keepdims)


def _vector_norm(x: Any, ord: Any, axes: Any, keepdims: bool) -> Any:
    if ord is None or ord == 2:
        return _euclidean(x, axes, keepdims)
    size = absolute(x)
    if ord == np.inf:
        return _largest(size, axes, keepdims)
    if ord == -np.inf:
        return min(size, axes, keepdims=keepdims)
    if ord == 0:
        return sum((x != 0).astype(size.dtype), axes, keepdims=keepdims)
    if ord == 1:
        return sum(size, axes, keepdims=keepdims)
    if isinstance(ord, str):
        raise ShapeError(f"norm of order {ord!r} of vectors; needed: a number" + call_site())
    return power(sum(power(size, ord), axes, keepdims=keepdims), 1.0 / ord)


def _largest(size: Any, axes: Any, keepdims: bool) -> Any:
    """The maximum of nonnegative numbers, 0 if there are none."""
    return (max if all(raw(size).shape[i] for i in axes) else sum)(size, axes, keepdims=keepdims)


def _matrix_norm(x: Any, ord: Any, axes: Any, keepdims: bool) -> Any:
    rows, columns = axes
    if ord is None or ord == "fro":
        return _euclidean(x, tuple(sorted(axes)), keepdims)
    if ord in (1, -1, np.inf, -np.inf):
        inner, outer = (rows, columns) if abs(ord) == 1 else (columns, rows)
        total = sum(absolute(x), inner, keepdims=True)
        y = _largest(total, (outer,), True) if ord > 0 else min(total, outer, keepdims=True)
    elif ord in (2, -2, "nuc"):
        s = svdvals(moveaxis(x, axes, (-2, -1)))
        y = sum(s, -1) if ord == "nuc" else _largest(s, (s.ndim - 1,), False) if ord == 2 else min(s, -1)
        return expand_dims(y, tuple(sorted(axes))) if keepdims else y
    else:
        text = f"norm of order {ord!r} of matrices; needed: None, 'fro', 'nuc', 1, -1, 2, -2, inf"
        raise NotDifferentiable(text + call_site())
    return y if keepdims else squeeze(y, tuple(sorted(axes)))


@instead_of(np.linalg.vector_norm)
def vector_norm(x: Any, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Any:
    """Return the norm of vectors along axes, or of all elements without `axis`. Adjoint: that of `norm`."""
    x, keepdims = operand(x), bool(keepdims)
    axes = normal_axes(axis, x.ndim)
    if len(axes) == 1 or ord in (2, None):
        return _vector_norm(x, ord, axes, keepdims)
    y = _vector_norm(reduced_axes_last(x, axes)[0], ord, (x.ndim - len(axes),), False)
    return expand_dims(y, axes) if keepdims else y


@instead_of(np.linalg.matrix_norm)
def matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> Any:
    """Return the norm of the matrices in the last two dimensions. Adjoint: that of `norm`."""
    return norm(x, ord, (-2, -1), keepdims)


@instead_of(np.linalg.cond)
def cond(x: Any, p: Any = None) -> Any:
    """Return the condition number with respect to inversion, in the norm `p` (2 by default).

    Adjoint: those of the norm and of the inverse, or of the singular values.
    """
    if p in (None, 2, -2):
        s = svdvals(x)
        s = absolute(s)  # a zero may have a sign
        y = s[..., 0] / s[..., -1] if p != -2 else s[..., -1] / s[..., 0]
    else:
        y = norm(x, p, (-2, -1)) * norm(inv(x), p, (-2, -1))
    return where(isnan(y) & ~any(isnan(x), (-2, -1)), np.inf, y)  # the zero matrix
