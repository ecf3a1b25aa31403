"""Linear algebra: inverses and linear systems. Leading dimensions are batches and may be sharded.

Adjoints of complex matrices follow the bilinear pairing (no conjugate).

Sources: M. Giles, "An extended collection of matrix derivative results" (2008), section 2; for the pseudo-inverse
G. Golub and V. Pereyra, SIAM J. Numer. Anal. 10 (1973), equation 4.12.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from functools import partial, wraps
from typing import Any

import numpy as np

from ..arrays.device import device_of, is_inexact
from ..arrays.half import epsilon
from ..arrays.shape_only import Shaped
from ..engine.dispatch import unbroadcast
from ..engine.primitive import Primitive, op
from ..layouts.layout import Mix
from .arguments import instead_of, made_like, operand, raw
from .elementwise import conj, where
from .shape import expand_dims, moveaxis, reshape, squeeze
from .shape import matrix_transpose as T

Shape = tuple[int, ...]


def H(x: Any) -> Any:
    """The conjugate transpose of each matrix."""
    return conj(T(x))


def eye_like(x: Any, dtype: Any = None, axis: int = -1) -> Any:
    """The identity matrix of the extent of `x` along an axis, on its device and by default of its dtype."""
    return made_like(partial(np.eye, int(raw(x).shape[axis]), dtype=x.dtype if dtype is None else dtype), x)


def inexact(x: Any) -> Any:
    """The dtype of the results of numpy.linalg: that of `x`, or float64 for integers."""
    return x.dtype if is_inexact(x.dtype) else np.dtype(float)


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
                dtype = np.result_type(*(v.dtype for v in xs if hasattr(v, "dtype")))
                return Shaped(shape(*xs), dtype if is_inexact(dtype) else float, x.why)
        return function(*xs)

    return run


# -- inverses and systems --------------------------------------------------------------------------------------------
inverse = op(
    "inv", "N", by_shape(np.linalg.inv, lambda x: x.shape), lambda ct, y, x: -(T(y) @ ct @ T(y)), saves="y",
    dims=matrix_dims, operands="a", tangent=(lambda dx, y, x: -(y @ dx @ y),),
)  # fmt: skip


@instead_of(np.linalg.inv)
def inv(a: Any) -> Any:
    """Return the inverse y of each matrix. Adjoint: ``-y.T @ ct @ y.T``."""
    return inverse(a)


@wraps(np.linalg.solve)
def _solution(a: Any, b: Any, *shapes: Shape) -> Any:
    if device_of(a) != "cpu" and b.ndim > 1 and a.shape[:-2] != b.shape[:-2]:  # CuPy does not broadcast batches
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        a, b = (np.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (a, b))
    return np.linalg.solve(a, b)


_solve_op: Primitive = op(
    "solve", "N a", by_shape(
        _solution, lambda a, b, *shapes: (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), *b.shape[-2:])),
    (lambda ct, y, a, b, s, t: unbroadcast(-(solved(T(a), ct) @ T(y)), s),
     lambda ct, y, a, b, s, t: unbroadcast(solved(T(a), ct), t)),
    saves="y0", dims=matrix_dims, operands="a b", tangent=(lambda da, y, a, b, s, t: -solved(a, da @ y), None),
)  # fmt: skip


def solved(a: Any, b: Any) -> Any:
    """Return the `x` with ``a @ x == b``, all of them matrices. The options are the shapes of the operands."""
    return _solve_op(a, b, options=(tuple(raw(a).shape), tuple(raw(b).shape)))


@instead_of(_solution)
def solve(a: Any, b: Any) -> Any:
    """Return the `x` with ``a @ x == b``, where `b` is one vector (one dimension) or matrices.

    Adjoint: with ``g = solve(a.T, ct)``, `b` gets g and `a` gets ``-g @ x.T``.
    """
    a, b = operand(a), operand(b)
    return squeeze(solved(a, expand_dims(b, -1)), -1) if b.ndim == 1 else solved(a, b)


def _pinv_adjoint(ct: Any, y: Any, x: Any, *options: Any) -> Any:
    left = eye_like(x, axis=-2) - x @ y
    right = eye_like(x) - y @ x
    g = -(T(y) @ ct @ T(y))
    return g + conj(left @ T(ct) @ y @ H(y)) + conj(H(y) @ y @ T(ct) @ right)


_pinv_op = op(
    "pinv", "N",
    by_shape(lambda x, rcond, *hermitian: np.linalg.pinv(x, rcond, *hermitian), lambda x, *_: (
        *x.shape[:-2], x.shape[-1], x.shape[-2])),
    _pinv_adjoint, saves="y0", dims=matrix_dims, operands="a",
)  # fmt: skip


@instead_of(np.linalg.pinv)
def pinv(a: Any, rcond: Any = None, hermitian: bool = False, *, rtol: Any = None) -> Any:
    """Return the Moore-Penrose pseudo-inverse. The derivative assumes that the rank does not change."""
    cut = rcond if rtol is None else rtol
    if cut is None:
        cut = epsilon(a.dtype) * sorted(raw(a).shape[-2:])[-1] if rtol is not None else 1e-15
    return _pinv_op(a, options=(float(cut), True) if hermitian else (float(cut),))  # CuPy has no `hermitian`


# -- composed of the operations above --------------------------------------------------------------------------------
@instead_of(np.linalg.matrix_power)
def matrix_power(a: Any, n: int) -> Any:
    """Return the n-th power of square matrices, for an integer n of either sign, by repeated squaring.

    Adjoint: those of the products and of the inverse.
    """
    if n < 0:
        a, n = inv(a), -n
    if n == 0:
        return where(np.zeros((), bool), a, eye_like(a))
    y = None
    while n:
        y = (a if y is None else y @ a) if n & 1 else y
        n >>= 1
        a = a @ a if n else a
    return y


@instead_of(np.linalg.tensorinv)
def tensorinv(a: Any, ind: int = 2) -> Any:
    """Return the inverse of the linear map ``x -> tensordot(a, x, ind)``.

    Adjoint: that of `inv` of the matrix of the map.
    """
    shape = raw(a).shape
    n = int(np.prod(shape[ind:]))
    return reshape(inv(reshape(a, (n, -1))), (*shape[ind:], *shape[:ind]))


@instead_of(np.linalg.tensorsolve)
def tensorsolve(a: Any, b: Any, axes: Any = None) -> Any:
    """Return the `x` with ``tensordot(a, x, x.ndim) == b``. Adjoint: that of `solve` with the matrix of the map."""
    a, b = operand(a), operand(b)
    if axes is not None:
        a = moveaxis(a, tuple(axes), tuple(range(a.ndim - len(axes), a.ndim)))
    shape = raw(a).shape[b.ndim :]
    n = int(np.prod(shape))
    return reshape(solve(reshape(a, (-1, n)), reshape(b, (-1,))), shape)
