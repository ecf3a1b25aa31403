"""Linear algebra: inverses, determinants, linear systems, norms. Leading dimensions are batches and may be sharded.

Adjoints of complex matrices follow the bilinear pairing (no conjugate).

Sources: M. Giles, "An extended collection of matrix derivative results" (2008), section 2; for the pseudo-inverse
G. Golub and V. Pereyra, SIAM J. Numer. Anal. 10 (1973), equation 4.12.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ..arrays.shape_only import Shaped
from ..engine.broadcasting import unbroadcast
from ..engine.multi_output import Several
from ..engine.primitive import Primitive, op
from ..errors import NotDifferentiable, ShapeError
from ..layouts.layout import Mix
from .arguments import instead_of, made_like, operand, raw
from .elementwise import absolute, conj, imag, power, real
from .reductions import broadcast_back, max, min, normal_axes, reduction_dims, sum
from .shape import expand_dims, matrix_transpose, moveaxis, reshape, squeeze
from .ufuncs import nonzero

Shape = tuple[int, ...]


def T(x: Any) -> Any:
    """The transpose of each matrix."""
    return matrix_transpose(x)


def H(x: Any) -> Any:
    """The conjugate transpose of each matrix."""
    return conj(matrix_transpose(x))


def eye_like(x: Any, n: int) -> Any:
    """The n by n identity matrix, on the device of `x` and of its dtype."""
    return made_like(partial(np.eye, n, dtype=x.dtype), x)


def inexact(x: Any) -> Any:
    """The dtype of the results of numpy.linalg: that of `x`, or float64 for integers."""
    return x.dtype if x.dtype.kind in "fc" else np.dtype(float)


def matrix_dims(shapes: Sequence[Shape], options: Any) -> Any:
    """Dimension rule: the two dimensions of a matrix are mixed, those before them are batches.

    It also serves operations that return one number per matrix.
    """
    batch = builtins.max(len(s) for s in shapes) - 2
    return [
        tuple(range(batch - (len(s) - 2), batch)) + (Mix, Mix) if len(s) >= 2 else tuple([Mix] * len(s)) for s in shapes
    ]



def by_shape(function: Any, shape: Any) -> Any:
    """Wrap a function of matrices to return, for shape-only arrays, a shape-only array of shape ``shape(*xs)``."""

    def run(*xs: Any) -> Any:
        for x in xs:
            if type(x) is Shaped:
                dtype = np.result_type(*(inexact(v) for v in xs if hasattr(v, "dtype")))
                return Shaped(shape(*xs), dtype, x.why)
        return function(*xs)

    return run


# -- inverses and systems --------------------------------------------------------------------------------------------
_inv_op = op(
    "inv", "N", by_shape(np.linalg.inv, lambda x: x.shape), lambda ct, y, x: -(T(y) @ ct @ T(y)), saves="y",
    dims=matrix_dims, operands="a", tangent=(lambda dx, y, x: -(y @ dx @ y),),
)  # fmt: skip


@instead_of(np.linalg.inv)
def inv(a: Any) -> Any:
    """Return the inverse y of each matrix. Adjoint: ``-y.T @ ct @ y.T``."""
    return _inv_op(a)


def _solution_shape(a: Any, b: Any, *shapes: Shape) -> Shape:
    return (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), *b.shape[-2:])


_solve_op: Primitive = op(
    "solve", "N a", by_shape(lambda a, b, *shapes: np.linalg.solve(a, b), _solution_shape),
    (lambda ct, y, a, b, s, t: unbroadcast(-(solved(T(a), ct) @ T(y)), s),
     lambda ct, y, a, b, s, t: unbroadcast(solved(T(a), ct), t)),
    saves="y0", dims=matrix_dims, operands="a b", tangent=(lambda da, y, a, b, s, t: -solved(a, da @ y), None),
)  # fmt: skip


def solved(a: Any, b: Any) -> Any:
    """Return the `x` with ``a @ x == b``, all of them matrices. The options are the shapes of the operands."""
    return _solve_op(a, b, options=(tuple(raw(a).shape), tuple(raw(b).shape)))


@instead_of(np.linalg.solve)
def solve(a: Any, b: Any) -> Any:
    """Return the `x` with ``a @ x == b``, where `b` is one vector (one dimension) or matrices.

    Adjoint: with ``g = solve(a.T, ct)``, `b` gets g and `a` gets ``-g @ x.T``.
    """
    a, b = operand(a), operand(b)
    return squeeze(solved(a, expand_dims(b, -1)), -1) if b.ndim == 1 else solved(a, b)


def _pinv_rule(ct: Any, y: Any, x: Any, *options: Any) -> Any:
    left = eye_like(x, x.shape[-2]) - x @ y
    right = eye_like(x, x.shape[-1]) - y @ x
    g = -(T(y) @ ct @ T(y))
    return g + conj(left @ T(ct) @ y @ H(y)) + conj(H(y) @ y @ T(ct) @ right)


_pinv_op = op(
    "pinv", "N",
    by_shape(lambda x, rcond, hermitian: np.linalg.pinv(x, rcond, hermitian), lambda x, *_: (*x.shape[:-2], x.shape[-1],
                                                                                        x.shape[-2])),
    _pinv_rule, saves="y0", dims=matrix_dims, operands="a",
)  # fmt: skip


@instead_of(np.linalg.pinv)
def pinv(a: Any, rcond: Any = None, hermitian: bool = False, *, rtol: Any = None) -> Any:
    """Return the Moore-Penrose pseudo-inverse. The derivative assumes that the rank does not change."""
    cut = rcond if rtol is None else rtol
    if cut is None:
        cut = float(np.finfo(a.dtype).eps) * sorted(raw(a).shape[-2:])[-1] if rtol is not None else 1e-15
    return _pinv_op(a, options=(float(cut), bool(hermitian)))


# -- determinants ----------------------------------------------------------------------------------------------------
_det_op = op(
    "det", "N", by_shape(np.linalg.det, lambda x: x.shape[:-2]),
    lambda ct, y, x: expand_dims(ct * y, (-2, -1)) * T(_inv_op(x)), saves="y0", dims=matrix_dims, operands="a",
)  # fmt: skip


@instead_of(np.linalg.det)
def det(a: Any) -> Any:
    """Return the determinant of each matrix. Adjoint: ``ct * det(a) * inv(a).T``, so the matrix must be invertible."""
    return _det_op(a)


def _slogdet_rule(cts: Any, ys: Any, x: Any) -> Any:
    of_sign, of_log = cts
    inverse = T(_inv_op(x))
    g = inverse * 0 if of_log is None else expand_dims(of_log, (-2, -1)) * inverse
    if of_sign is not None and x.dtype.kind == "c":  # the sign of a real determinant is piecewise constant
        g = g + expand_dims(imag(of_sign * ys[0]), (-2, -1)) * (inverse * 1j)
    return g


_slogdet_op = Several(
    "slogdet", "N", np.linalg.slogdet, _slogdet_rule, saves="y0", operands="a",
    dims=lambda shapes, options: [matrix_dims(shapes, options)] * 2,
    outputs=lambda x: [(x.shape[:-2], inexact(x)), (x.shape[:-2], inexact(x).type(0).real.dtype)],
)  # fmt: skip


@instead_of(np.linalg.slogdet)
def slogdet(a: Any) -> Any:
    """Return the sign of the determinant and the logarithm of its absolute value."""
    return _slogdet_op(a)


# -- norms -----------------------------------------------------------------------------------------------------------
def _norm(x: Any, axes: Any, keepdims: bool, shape: Any) -> Any:
    square = np.real(x) ** 2 + np.imag(x) ** 2 if x.dtype.kind == "c" else x * x
    return np.sqrt(np.sum(square, axis=axes, keepdims=keepdims))


def _norm_tangent(dx: Any, y: Any, x: Any, axes: Any, keepdims: bool, shape: Any) -> Any:
    return sum(real(dx * conj(x)), axes, keepdims=keepdims) / nonzero(y)


_norm_op = op(
    "norm", "N", _norm,
    lambda ct, y, x, axes, keepdims, shape: broadcast_back(ct / nonzero(y), axes, shape) * conj(x),
    saves="y0", dims=reduction_dims(lambda i: Mix), operands="x", tangent=(_norm_tangent,),
)  # fmt: skip


def _euclidean(x: Any, axes: Any, keepdims: bool) -> Any:
    return _norm_op(x, options=(axes, keepdims, tuple(int(n) for n in raw(x).shape)))


@instead_of(np.linalg.norm)
def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    """Return the norm of vectors or matrices, of every order that NumPy has.

    At zero, where the norm has no derivative, it is taken as 0.

    Raises
    ------
    ShapeError
        An order is given for an array of more than two dimensions without `axis`.
    """
    x = operand(x)
    if x.dtype.kind not in "fc":
        x = x.astype(float)
    if axis is None and (ord is None or (ord == "fro" and x.ndim == 2) or (ord == 2 and x.ndim == 1)):
        return _euclidean(x, tuple(range(x.ndim)), keepdims)
    if axis is None and x.ndim > 2:
        raise ShapeError(f"norm of order {ord!r} of {x.ndim} dimensions; needed: axis= with one or two of them")
    axes = tuple(range(x.ndim)) if axis is None else (axis,) if isinstance(axis, int | np.integer) else tuple(axis)
    axes = tuple(int(a) % x.ndim for a in axes)
    return _vector_norm(x, ord, axes, keepdims) if len(axes) == 1 else _matrix_norm(x, ord, axes, keepdims)


def _vector_norm(x: Any, ord: Any, axes: Any, keepdims: bool) -> Any:
    if ord is None or ord == 2:
        return _euclidean(x, axes, keepdims)
    size = absolute(x)
    if ord == np.inf:
        return max(size, axes, keepdims=keepdims)
    if ord == -np.inf:
        return min(size, axes, keepdims=keepdims)
    if ord == 0:
        return sum((x != 0).astype(size.dtype), axes, keepdims=keepdims)
    if ord == 1:
        return sum(size, axes, keepdims=keepdims)
    if isinstance(ord, str):
        raise ShapeError(f"norm of order {ord!r} of vectors; needed: a number")
    return power(sum(power(size, ord), axes, keepdims=keepdims), 1.0 / ord)


def _matrix_norm(x: Any, ord: Any, axes: Any, keepdims: bool) -> Any:
    rows, columns = axes
    if ord is None or ord == "fro":
        return _euclidean(x, tuple(sorted(axes)), keepdims)
    if ord in (1, -1, np.inf, -np.inf):
        inner, outer = (rows, columns) if abs(ord) == 1 else (columns, rows)
        total = sum(absolute(x), inner, keepdims=True)
        y = (max if ord > 0 else min)(total, outer, keepdims=True)
    elif ord in (2, -2, "nuc"):
        s = svdvals(moveaxis(x, axes, (-2, -1)))
        y = sum(s, -1) if ord == "nuc" else max(s, -1) if ord == 2 else min(s, -1)
        return expand_dims(y, tuple(sorted(axes))) if keepdims else y
    else:
        raise NotDifferentiable(f"norm of order {ord!r} of matrices; needed: None, 'fro', 'nuc', 1, -1, 2, -2, inf")
    return y if keepdims else squeeze(y, tuple(sorted(axes)))


@instead_of(np.linalg.vector_norm)
def vector_norm(x: Any, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Any:
    """Return the norm of vectors along axes, or of all elements without `axis`."""
    x = operand(x)
    axes = normal_axes(axis, x.ndim)
    if len(axes) == 1 or ord in (2, None):
        return _vector_norm(x, ord, axes, keepdims)
    from .sorting import reduced_axes_last

    y = _vector_norm(reduced_axes_last(x, axes)[0], ord, (x.ndim - len(axes),), False)
    return expand_dims(y, axes) if keepdims else y


@instead_of(np.linalg.matrix_norm)
def matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> Any:
    """Return the norm of the matrices in the last two dimensions."""
    return norm(x, ord, (-2, -1), keepdims)


@instead_of(np.linalg.cond)
def cond(x: Any, p: Any = None) -> Any:
    """Return the condition number with respect to inversion, in the norm `p` (2 by default)."""
    if p in (None, 2, -2):
        s = svdvals(x)
        return s[..., 0] / s[..., -1] if p != -2 else s[..., -1] / s[..., 0]
    return norm(x, p, (-2, -1)) * norm(inv(x), p, (-2, -1))


# -- composed of the operations above --------------------------------------------------------------------------------
@instead_of(np.linalg.matrix_power)
def matrix_power(a: Any, n: int) -> Any:
    """Return the n-th power of square matrices, for an integer n of either sign, by repeated squaring."""
    if n < 0:
        a, n = inv(a), -n
    if n == 0:
        return a * 0 + eye_like(a, raw(a).shape[-1])
    y = None
    while n:
        y = (a if y is None else y @ a) if n & 1 else y
        n >>= 1
        a = a @ a if n else a
    return y


@instead_of(np.linalg.tensorinv)
def tensorinv(a: Any, ind: int = 2) -> Any:
    """Return the inverse of the linear map ``x -> tensordot(a, x, ind)``."""
    shape = raw(a).shape
    n = int(np.prod(shape[ind:]))
    return reshape(inv(reshape(a, (n, -1))), (*shape[ind:], *shape[:ind]))


@instead_of(np.linalg.tensorsolve)
def tensorsolve(a: Any, b: Any, axes: Any = None) -> Any:
    """Return the `x` with ``tensordot(a, x, x.ndim) == b``."""
    a, b = operand(a), operand(b)
    if axes is not None:
        a = moveaxis(a, tuple(axes), tuple(range(a.ndim - len(axes), a.ndim)))
    shape = raw(a).shape[b.ndim :]
    n = int(np.prod(shape))
    return reshape(solve(reshape(a, (-1, n)), reshape(b, (-1,))), shape)


from .decompositions import svdvals  # noqa: E402  - used by some norms
