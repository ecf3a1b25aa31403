"""``numpy.linalg`` with differentiable functions. ``matrix_rank`` and ``lstsq``, without derivatives, are NumPy's."""

from __future__ import annotations

import numpy.linalg as _linalg
from numpy.linalg import LinAlgError, lstsq, matrix_rank

from ..ops.arguments import instead_of as _instead_of
from ..ops.contractions import matmul
from ..ops.decompositions import cholesky, eig, eigh, eigvals, eigvalsh, qr, svd, svdvals
from ..ops.einsum import cross as _cross
from ..ops.einsum import multi_dot, tensordot, vecdot
from ..ops.einsum import outer as _outer
from ..ops.linalg import inv, matrix_power, pinv, solve, tensorinv, tensorsolve
from ..ops.manipulation import diagonal as _diagonal
from ..ops.manipulation import trace as _trace
from ..ops.norms import cond, det, matrix_norm, norm, slogdet, vector_norm
from ..ops.shape import matrix_transpose

__all__ = [
    "LinAlgError", "cholesky", "cond", "cross", "det", "diagonal", "eig", "eigh", "eigvals", "eigvalsh", "inv", "lstsq",
    "matmul", "matrix_norm", "matrix_power", "matrix_rank", "matrix_transpose", "multi_dot", "norm", "outer", "pinv",
    "qr", "slogdet", "solve", "svd", "svdvals", "tensordot", "tensorinv", "tensorsolve", "trace", "vecdot",
    "vector_norm",
]  # fmt: skip

T, _dot = matrix_transpose, matmul  # names of HIPS autograd that its users call


@_instead_of(_linalg.cross)
def cross(x1: object, x2: object, /, *, axis: int = -1) -> object:
    """Return the cross product of vectors with three components along an axis.

    Adjoint: ``cross(x2, ct)`` and ``cross(ct, x1)``.
    """
    return _cross(x1, x2, axis=axis)


@_instead_of(_linalg.outer)
def outer(x1: object, x2: object, /) -> object:
    """Return the matrix of all products of an element of one vector and an element of another.

    Adjoint: ``ct @ x2`` and ``x1 @ ct``.
    """
    return _outer(x1, x2)


@_instead_of(_linalg.diagonal)
def diagonal(x: object, /, *, offset: int = 0) -> object:
    """Return the diagonal of the last two dimensions. Adjoint: a matrix with the cotangent on its diagonal."""
    return _diagonal(x, offset, -2, -1)


@_instead_of(_linalg.trace)
def trace(x: object, /, *, offset: int = 0, dtype: object = None) -> object:
    """Return the sum of the diagonal of the last two dimensions.

    Adjoint: the cotangent on the diagonal of a matrix of zeros.
    """
    return _trace(x, offset, -2, -1, dtype)
