"""Norms of vectors and matrices, and condition numbers. At zero the derivative of a norm is taken as 0."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arrays.device import is_inexact
from ..arrays.half import in_float32
from ..engine.primitive import op
from ..engine.promotion import composite
from ..errors import NotDifferentiable, ShapeError, call_site
from ..layouts.layout import Mix
from .arguments import axes_in_order, instead_of, normal_axes, operand, raw
from .decompositions import svdvals
from .elementwise import absolute, conj, isfinite, power, real, stop_gradient, where
from .linalg import inv
from .reductions import any, broadcast_back, max, min, reduction_dims, sum
from .shape import expand_dims, moveaxis, squeeze
from .sorting import reduced_axes_last
from .ufuncs import isnan, nonzero


@in_float32
def _norm(x: Any, axes: Any, keepdims: bool, shape: Any) -> Any:
    if not isinstance(x, np.ndarray):
        return np.sqrt(np.sum(_squares(x), axis=axes, keepdims=keepdims))
    with np.errstate(over="ignore", under="ignore"):
        y = np.sqrt(np.sum(_squares(x), axis=axes, keepdims=True))
        fits = (y > np.finfo(x.dtype).tiny ** 0.5) & (y < np.inf)
        if not np.all(fits):  # a square is too large or too small: divided by the largest element, none is
            size = np.abs(x)
            largest = np.max(size, axis=axes, keepdims=True, initial=0)
            scale = np.where((largest > 0) & (largest < np.inf), largest, 1).astype(size.dtype)
            y = np.where(fits, y, scale * np.sqrt(np.sum(_squares(size / scale), axis=axes, keepdims=True)))
    return y if keepdims else np.squeeze(y, axes)[()]


def _squares(x: Any) -> Any:
    return np.real(x) ** 2 + np.imag(x) ** 2 if x.dtype.kind == "c" else x * x


def _norm_tangent(dx: Any, y: Any, x: Any, axes: Any, keepdims: bool, shape: Any) -> Any:
    return sum(real(dx * conj(x)), axes, keepdims=keepdims) / nonzero(y)


_norm_op = op(
    "norm", "N", _norm,
    lambda ct, y, x, axes, keepdims, shape: broadcast_back(ct / nonzero(y), axes, shape) * conj(x),
    saves="y0", dims=reduction_dims(lambda i: Mix), operands="x", tangent=(_norm_tangent,),
)  # fmt: skip


def _euclidean(x: Any, axes: Any, keepdims: bool) -> Any:
    return _norm_op(x, options=(axes, keepdims, tuple(int(n) for n in raw(x).shape)))


@instead_of(np.linalg.norm, checked=1)
@composite
def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    """Return the norm of vectors or matrices, of every order that NumPy has.

    At zero, where the norm has no derivative, it is taken as 0.

    Raises
    ------
    ShapeError
        An order is given for an array of more than two dimensions without `axis`.
    """
    x, keepdims = operand(x), bool(keepdims)
    if not is_inexact(x.dtype):
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
    # The norm is that of the elements divided by any number, times that number. Powers of those divided by the largest
    # one are neither too large nor too small.
    top = stop_gradient(max(size, axes, keepdims=True)) if raw(size).size else 1.0
    scale = top if raw(size).size == 0 else where((top > 0) & isfinite(top), top, 1)
    y = power(sum(power(size / scale, ord), axes, keepdims=keepdims), 1.0 / ord)
    return y * (scale if keepdims or raw(size).size == 0 else squeeze(scale, axes))


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
@composite
def vector_norm(x: Any, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Any:
    """Return the norm of vectors along axes, or of all elements without `axis`. Adjoint: that of `norm`."""
    x, keepdims = operand(x), bool(keepdims)
    axes = normal_axes(axis, x.ndim)
    if len(axes) == 1 or ord in (2, None):
        return _vector_norm(x, ord, axes, keepdims)
    y = _vector_norm(reduced_axes_last(x, axes)[0], ord, (x.ndim - len(axes),), False)
    return expand_dims(y, axes) if keepdims else y


@instead_of(np.linalg.matrix_norm)
@composite
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
