"""Numbers of a matrix: determinants, norms, condition numbers; and norms of vectors.

The leading dimensions of determinants are batches and may be sharded. Adjoints of complex matrices follow the bilinear
pairing (no conjugate).

The gradient of a determinant is the matrix of cofactors, which exists for every matrix. Of a regular one it is
``det(a) * inv(a).T``. Of one that is singular, or so close to it that the inverse has lost half of its digits, it is
computed from the singular values: with ``a = u @ diag(s) @ vh`` the determinant of ``u.H @ a @ vh.H`` is
``s_1 ... s_n`` with derivatives that are products of the other singular values.

Sources: M. Giles, "An extended collection of matrix derivative results" (2008), section 2; G. W. Stewart, "On the
adjugate matrix", Linear Algebra Appl. 283 (1998).

At zero the derivative of a norm is taken as 0. A second derivative there, such as that of ``norm(x)**2``, is NaN: see
`elementwise.over`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arrays.capture import decided
from ..arrays.device import is_inexact, to_host
from ..arrays.half import epsilon, in_float32
from ..arrays.shape_only import Shaped
from ..engine.multi_output import Several
from ..engine.primitive import op
from ..errors import LinAlgError, NotDifferentiable, ShapeError
from ..layouts.layout import Mix
from .arguments import axes_in_order, instead_of, normal_axes, operand, raw
from .decompositions import svd, svdvals
from .elementwise import absolute, conj, imag, isfinite, over, power, real, stop_gradient, where
from .linalg import by_shape, eye_like, inexact, inv, inverse, matrix_dims
from .manipulation import diagonal, make_diagonal
from .reductions import any, broadcast_back, max, min, reduction_dims, sum
from .shape import expand_dims, moveaxis, squeeze
from .shape import matrix_transpose as T
from .sorting import reduced_axes_last
from .statistics import is_quickly_read, prod
from .ufuncs import isnan


# -- determinants ----------------------------------------------------------------------------------------------------
def _have_digits(a: Any, b: Any) -> bool:
    """Whether the inverses `b` have at least half of their digits, so that second derivatives have some."""
    size = np.max(np.abs(a), axis=(-2, -1)) * np.max(np.abs(b), axis=(-2, -1))
    are_small = size * epsilon(b.dtype) ** 0.5 < 1
    return bool(are_small.all() if isinstance(are_small, np.ndarray | np.generic) else to_host(are_small.all()))


def _cofactors(det: Any, x: Any) -> Any:
    """The matrix of the cofactors of each matrix: the gradient of its determinant."""
    if not is_quickly_read(raw(x)):
        return cofactors(x)
    try:
        y = inverse(x)
    except np.linalg.LinAlgError:
        return cofactors(x)
    a = raw(x)
    is_regular = type(a) is Shaped or not a.size or decided(_have_digits, a, raw(y))
    return expand_dims(det, (-2, -1)) * T(y) if is_regular else cofactors(x)


# -- cofactors of singular matrices, with det(a + e) = phase * det(s + u.H @ e @ vh.H) -------------------------------
def _factors(x: Any) -> tuple[Any, Any, Any, Any]:
    """``conj(u)``, the singular values, ``conj(vh)``, and the determinant of ``u @ vh``, of modulus 1."""
    u, s, vh = svd(x)
    return conj(u), s, conj(vh), det(u @ vh)


def _cofactors_of(x: Any) -> Any:
    """The cofactors from the singular values, on arrays."""
    if type(x) is Shaped:
        return x
    u, s, vh, phase = _factors(x)
    others = prod(where(eye_like(s, bool), 1, expand_dims(s, -2)), -1)  # the product of all values but i, [..., n]
    return (expand_dims(phase, (-2, -1)) * (u * expand_dims(others, -2) @ vh)).astype(x.dtype)


def _cofactors_slope(ct: Any, y: Any, x: Any) -> Any:
    """The derivative of the cofactors in the direction `ct`: a symmetric map, the second derivative of the determinant.

    ``det(s + e)`` has the terms ``p_ij (e_ii e_jj - e_ij e_ji)`` of second order, for i < j, with the product p_ij of
    the singular values but i and j.
    """
    u, s, vh, phase = _factors(x)
    e = T(u) @ ct @ T(vh)
    own = eye_like(s, bool)
    others = where(expand_dims(own, 0), 1, where(expand_dims(own, 1), 1, expand_dims(s, (-3, -2))))
    others = where(own, 0, prod(others, -1))  # the products of all values but i and j, [..., n, n]
    on_diagonal = sum(others * expand_dims(diagonal(e, 0, -2, -1), -2), -1)
    inner = make_diagonal(on_diagonal, 0, -2, -1) - others * T(e)
    return expand_dims(phase, (-2, -1)) * (u @ inner @ vh)


cofactors = op(
    "cofactors", "N", _cofactors_of, _cofactors_slope, saves="0", dims=matrix_dims, operands="a",
    tangent=(_cofactors_slope,),
)  # fmt: skip


_det_op = op(
    "det", "N", by_shape(np.linalg.det, lambda x: x.shape[:-2]),
    lambda ct, y, x: expand_dims(ct, (-2, -1)) * _cofactors(y, x), saves="y0", dims=matrix_dims, operands="a",
)  # fmt: skip


@instead_of(np.linalg.det)
def det(a: Any) -> Any:
    """Return the determinant of each matrix.

    Adjoint: ct times the matrix of cofactors, which is ``det(a) * inv(a).T`` for regular matrices. First and second
    derivatives are also right where the matrix is singular. Third derivatives there are NaN if singular values
    coincide.
    """
    return _det_op(a)


def _inverse(a: Any) -> Any:
    """The inverse of each matrix, in an adjoint."""
    try:
        return inverse(a)
    except np.linalg.LinAlgError as error:
        shape = "x".join(map(str, raw(a).shape))
        raise LinAlgError(f"Singular matrix ({shape}): a derivative needs the inverse of the matrix") from error


def _slogdet_adjoint(cts: Any, ys: Any, x: Any) -> Any:
    ct_sign, ct_log = cts
    transposed = T(_inverse(x))
    # a zero that depends on the cotangent has its layout
    g = expand_dims(real(ct_sign) * 0 if ct_log is None else ct_log, (-2, -1)) * transposed
    if ct_sign is not None and x.dtype.kind == "c":  # the sign of a real determinant is piecewise constant
        g = g + expand_dims(imag(ct_sign * ys[0]), (-2, -1)) * (transposed * 1j)
    return g


_slogdet_op = Several(
    "slogdet", "N", np.linalg.slogdet, _slogdet_adjoint, saves="y0", operands="a",
    dims=lambda shapes, options: [matrix_dims(shapes, options)] * 2,
    outputs=lambda x: [(x.shape[:-2], inexact(x)), (x.shape[:-2], inexact(x).type(0).real.dtype)],
)  # fmt: skip


@instead_of(np.linalg.slogdet)
def slogdet(a: Any) -> Any | tuple[Any, ...]:
    """Return the sign of the determinant and the logarithm of its absolute value.

    Adjoint: ``ct * inv(a).T`` for the logarithm, so the matrix must be invertible.
    """
    return _slogdet_op(a)


# -- norms -----------------------------------------------------------------------------------------------------------
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


_norm_op = op(
    "norm", "N", _norm,
    lambda ct, y, x, axes, keepdims, shape: broadcast_back(over(ct, y), axes, shape) * conj(x),
    saves="y0", dims=reduction_dims(lambda i: Mix), operands="x",
    tangent=(lambda dx, y, x, axes, keepdims, shape: over(sum(real(dx * conj(x)), axes, keepdims=keepdims), y),),
)  # fmt: skip


def _euclidean(x: Any, axes: Any, keepdims: bool) -> Any:
    return _norm_op(x, options=(axes, keepdims, tuple(int(n) for n in raw(x).shape)))


@instead_of(np.linalg.norm, checked=1, in_float32=True)
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
    if not is_inexact(x.dtype):
        x = x.astype(float)
    if axis is None and (ord is None or (ord == "fro" and x.ndim == 2) or (ord == 2 and x.ndim == 1)):
        return _euclidean(x, tuple(range(x.ndim)), keepdims)
    if axis is None and x.ndim > 2:
        text = f"norm of order {ord!r} of {x.ndim} dimensions; needed: axis= with one or two of them"
        raise ShapeError(text)
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
        raise ShapeError(f"norm of order {ord!r} of vectors; needed: a number")
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
        raise NotDifferentiable(text)
    return y if keepdims else squeeze(y, tuple(sorted(axes)))


@instead_of(np.linalg.vector_norm, in_float32=True)
def vector_norm(x: Any, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Any:
    """Return the norm of vectors along axes, or of all elements without `axis`. Adjoint: that of `norm`."""
    x, keepdims = operand(x), bool(keepdims)
    axes = normal_axes(axis, x.ndim)
    if len(axes) == 1 or ord in (2, None):
        return _vector_norm(x, ord, axes, keepdims)
    y = _vector_norm(reduced_axes_last(x, axes)[0], ord, (x.ndim - len(axes),), False)
    return expand_dims(y, axes) if keepdims else y


@instead_of(np.linalg.matrix_norm, in_float32=True)
def matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> Any:
    """Return the norm of the matrices in the last two dimensions. Adjoint: that of `norm`."""
    return norm(x, ord, (-2, -1), keepdims)


@instead_of(np.linalg.cond)
def cond(x: Any, p: Any = None) -> Any:
    """Return the condition number with respect to inversion, in the norm `p` (2 by default).

    Adjoint: those of the norm and of the inverse, or of the singular values.
    """
    if p in (None, 2, -2):
        s = absolute(svdvals(x))  # a zero may have a sign
        y = s[..., 0] / s[..., -1] if p != -2 else s[..., -1] / s[..., 0]
    else:
        y = norm(x, p, (-2, -1)) * norm(inv(x), p, (-2, -1))
    return where(isnan(y) & ~any(isnan(x), (-2, -1)), np.inf, y)  # the zero matrix
