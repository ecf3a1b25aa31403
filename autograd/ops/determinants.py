"""Determinants, their signs and logarithms. Leading dimensions are batches and may be sharded.

Adjoints of complex matrices follow the bilinear pairing (no conjugate).

The gradient of a determinant is the matrix of cofactors, which exists for every matrix. Of a regular one it is
``det(a) * inv(a).T``. Of one that is singular, or so close to it that the inverse has lost half of its digits, it is
computed from the singular values: with ``a = u @ diag(s) @ vh`` the determinant of ``u.H @ a @ vh.H`` is
``s_1 ... s_n`` with derivatives that are products of the other singular values.

Sources: M. Giles, "An extended collection of matrix derivative results" (2008), section 2; G. W. Stewart, "On the
adjugate matrix", Linear Algebra Appl. 283 (1998).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ..arrays.shape_only import Shaped
from ..engine.multi_output import Several
from ..engine.primitive import op
from ..errors import LinAlgError, call_site
from .arguments import instead_of, made_like, raw
from .decompositions import svd
from .elementwise import conj, imag, real, where
from .linalg import T, by_shape, inexact, inv, matrix_dims
from .manipulation import diagonal, make_diagonal
from .reductions import sum
from .shape import expand_dims
from .statistics import prod


def _is_regular(x: Any, inverse: Any) -> bool:
    """Whether the inverses have at least half of their digits, so that second derivatives have some."""
    a, b = raw(x), raw(inverse)
    if type(a) is Shaped or not a.size:
        return True
    size = np.max(np.abs(a), axis=(-2, -1)) * np.max(np.abs(b), axis=(-2, -1))
    return bool((size * np.sqrt(np.finfo(a.dtype).eps) < 1).all())


def _cofactors(det: Any, x: Any) -> Any:
    """The matrix of the cofactors of each matrix: the gradient of its determinant."""
    try:
        inverse = inv(x)
    except np.linalg.LinAlgError:
        return cofactors(x)
    return expand_dims(det, (-2, -1)) * T(inverse) if _is_regular(x, inverse) else cofactors(x)


# -- cofactors of singular matrices, with det(a + e) = phase * det(s + u.H @ e @ vh.H) -------------------------------
def _factors(x: Any) -> tuple[Any, Any, Any, Any]:
    """``conj(u)``, the singular values, ``conj(vh)``, and the determinant of ``u @ vh``, of modulus 1."""
    u, s, vh = svd(x)
    return conj(u), s, conj(vh), det(u @ vh)


def _own(s: Any) -> Any:
    return made_like(partial(np.eye, raw(s).shape[-1], dtype=bool), s)


def _products_of_others(s: Any) -> Any:
    """The products of all values but i, [..., n]."""
    return prod(where(_own(s), 1, expand_dims(s, -2)), -1)


def _products_of_all_but_two(s: Any) -> Any:
    """The products of all values but i and j, [..., n, n], with zeros where they are the same."""
    own = _own(s)
    others = where(expand_dims(own, 0), 1, where(expand_dims(own, 1), 1, expand_dims(s, (-3, -2))))
    return where(own, 0, prod(others, -1))


def _cofactors_of(x: Any) -> Any:
    """The cofactors from the singular values, on arrays."""
    if type(x) is Shaped:
        return x
    u, s, vh, phase = _factors(x)
    others = expand_dims(phase, (-2, -1)) * (u * expand_dims(_products_of_others(s), -2) @ vh)
    return others.astype(x.dtype)


def _cofactors_slope(ct: Any, y: Any, x: Any) -> Any:
    """The derivative of the cofactors in the direction `ct`: a symmetric map, the second derivative of the determinant.

    ``det(s + e)`` has the terms ``p_ij (e_ii e_jj - e_ij e_ji)`` of second order, for i < j, with the product p_ij of
    the singular values but i and j.
    """
    u, s, vh, phase = _factors(x)
    e = T(u) @ ct @ T(vh)
    others = _products_of_all_but_two(s)
    on_diagonal = sum(others * expand_dims(diagonal(e, 0, -2, -1), -2), -1)
    inner = make_diagonal(on_diagonal, 0, -2, -1) - others * T(e)
    return expand_dims(phase, (-2, -1)) * (u @ inner @ vh)


cofactors = op(
    "cofactors", "N", _cofactors_of, _cofactors_slope, saves="0", dims=matrix_dims, operands="a",
    tangent=(_cofactors_slope,),
)  # fmt: skip


# -- determinants ----------------------------------------------------------------------------------------------------
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
        return inv(a)
    except np.linalg.LinAlgError as error:
        shape = "x".join(map(str, raw(a).shape))
        raise LinAlgError(
            f"Singular matrix ({shape}): a derivative needs the inverse of the matrix" + call_site()
        ) from error


def _slogdet_adjoint(cts: Any, ys: Any, x: Any) -> Any:
    ct_sign, ct_log = cts
    inverse = T(_inverse(x))
    # a zero that depends on the cotangent has its layout
    g = expand_dims(real(ct_sign) * 0 if ct_log is None else ct_log, (-2, -1)) * inverse
    if ct_sign is not None and x.dtype.kind == "c":  # the sign of a real determinant is piecewise constant
        g = g + expand_dims(imag(ct_sign * ys[0]), (-2, -1)) * (inverse * 1j)
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
