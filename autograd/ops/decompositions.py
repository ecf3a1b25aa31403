"""Matrix decompositions: eigenvalues and eigenvectors, singular values, Cholesky, QR. Leading dimensions are batches.

Vectors are determined only up to a sign or a phase, and a function that depends on that choice has no derivative.

Where values coincide, their vectors are any basis of a subspace and have no derivative. A function of the matrix that
is computed from them, such as ``v @ diag(f(w)) @ v.T``, may have one, but the cotangents of w and v do not determine
it: at the identity ``v @ diag(w) @ v.T`` and ``v @ v.T`` give `v` the same cotangent, and their derivatives differ. So
the gradient of a function that uses the vectors is NaN there, unless their cotangents have no part that depends on the
basis, as those of a trace. The gradient of a function of the values alone is right where it exists. Values count as
equal where they differ by no more than the rounding of the decomposition.

Adjoints of complex matrices follow the bilinear pairing (no conjugate).

Sources: M. Giles (2008), section 3; Z.-Q. Wan and S.-X. Zhang, arXiv:1909.02659 (singular values of complex matrices);
C. Boeddeker et al., arXiv:1701.00392, equation 4.77 (eigenvectors); I. Murray, arXiv:1602.07527 (Cholesky); S. Walter
and L. Lehmann, arXiv:1009.6112 (QR).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ..arrays.capture import decided
from ..arrays.half import epsilon, in_float32
from ..engine.multi_output import Several
from ..engine.primitive import op
from ..errors import NotDifferentiable
from .arguments import followed, instead_of, raw
from .elementwise import absolute, astype, conj, imag, real, sign, where
from .linalg import H, by_shape, eye_like, inexact, matrix_dims, solved
from .manipulation import diagonal, make_diagonal, tril, triu
from .reductions import max
from .shape import concatenate, expand_dims
from .shape import matrix_transpose as T
from .sorting import take_along_axis

_row, _column = partial(expand_dims, axis=-2), partial(expand_dims, axis=-1)
_diagonal_matrix = partial(make_diagonal, axis1=-2, axis2=-1)


def _diagonal(x: Any) -> Any:
    return diagonal(x, 0, -2, -1)


_ROUNDING = 16
"""Errors of computed eigenvalues and singular values are a few units of rounding of the largest one; measured: 10."""


def _least(values: Any) -> Any:
    """The bound below which a value is zero but for rounding; an array that broadcasts with the values."""
    return max(absolute(values), -1, keepdims=True) * (_ROUNDING * epsilon(values.dtype))


def _inverse(values: Any) -> Any:
    """``1 / v``, and NaN where v is zero but for rounding."""
    if not raw(values).shape[-1]:
        return values
    zero = absolute(values) <= _least(values)
    return where(zero, np.nan, 1 / where(zero, 1, values))


def _same(values: Any) -> Any:
    """The pairs of values that coincide but for rounding, each with itself too: a matrix of booleans."""
    apart = _row(values) - _column(values)
    return absolute(apart) <= _row(_least(values)) if raw(values).shape[-1] else apart == 0


def _inverse_gaps(values: Any, same: Any) -> Any:
    """The matrix of ``1 / (v_j - v_i)``, with 0 where the values are the same."""
    apart = _row(values) - _column(values)
    return where(same, apart * 0, 1 / where(same, 1, apart))


@in_float32
def _undetermined(m: Any, same: Any) -> Any:
    """NaN for pairs that coincide, if the cotangent of their vectors depends on the basis; 0 for others.

    `m` is the cotangent in the basis of the vectors. That of a trace has no part that turns one of a pair towards the
    other. If two vectors have no cotangent at all, it may be because they have the weight 0 at this point only.
    """
    size = np.abs(m)
    own = np.diagonal(size, 0, -2, -1)
    least = np.minimum(own[..., None, :], own[..., :, None]) * (_ROUNDING * epsilon(m.dtype))
    on_diagonal = eye_like(m, bool)
    known = ((size + np.swapaxes(size, -1, -2) <= least) & (least > 0)) | on_diagonal
    return np.where(same & ~known, np.nan, m * 0)


def _undetermined_adjoint(ct: Any, y: Any, m: Any, same: Any) -> Any:
    own = eye_like(same, bool)
    return ct * astype(where(own, 0, where(same, np.nan, 0)), _real(ct.dtype))


_undetermined_op = op(
    "undetermined", "a S", by_shape(_undetermined, lambda m, same: m.shape), (_undetermined_adjoint, None), saves="1",
    dims=matrix_dims, operands="m same",
)  # fmt: skip


def _add(a: Any, b: Any) -> Any:
    """The sum of two matrices, either of which may be None for zero."""
    return b if a is None else a if b is None else a + b


def _real(dtype: Any) -> Any:
    return dtype.type(0).real.dtype


def _batches(*ndims: int) -> Any:
    """The dimension rule of a decomposition whose outputs have `ndims` dimensions after the batches."""

    return lambda shapes, options: [matrix_dims(shapes, options)] * len(ndims)


# -- Hermitian matrices ----------------------------------------------------------------------------------------------
def _eigh_adjoint(cts: Any, ys: Any, x: Any, uplo: str) -> Any:
    (ct_w, ct_v), (w, v) = cts, ys
    inner = None if ct_w is None else _diagonal_matrix(ct_w)
    if ct_v is not None:
        m = T(v) @ ct_v
        same = _same(w)
        inner = _add(inner, _inverse_gaps(w, same) * m + _undetermined_op(m, same))
    g = conj(v) @ inner @ T(v)
    # eigh reads one triangle, takes the other as its conjugate, and ignores the imaginary part of the diagonal
    both = g + H(g)
    return (tril(both, -1) if uplo == "L" else triu(both, 1)) + _diagonal_matrix(astype(real(_diagonal(g)), g.dtype))


_eigh_op = Several(
    "eigh", "N", lambda x, uplo: np.linalg.eigh(x, uplo), _eigh_adjoint, saves="y", operands="a", dims=_batches(1, 2),
    outputs=lambda x, uplo: [(x.shape[:-1], _real(inexact(x))), (x.shape, inexact(x))],
)  # fmt: skip


@instead_of(np.linalg.eigh)
def eigh(a: Any, UPLO: str = "L") -> Any | tuple[Any, ...]:
    """Return eigenvalues (ascending) and eigenvectors of Hermitian matrices.

    Only the triangle that is read, `UPLO`, gets a cotangent. Where eigenvalues coincide, the gradient of a function of
    the eigenvalues alone is right if the function is symmetric in them, and otherwise that of this order of the
    eigenvectors; the gradient of a function that uses the eigenvectors is NaN, because their cotangents do not
    determine it, or right where they do not depend on the basis.
    """
    return _eigh_op(a, options=(UPLO.upper(),))


@instead_of(np.linalg.eigvalsh)
def eigvalsh(a: Any, UPLO: str = "L") -> Any:
    """Return the eigenvalues of Hermitian matrices, in ascending order. Adjoint: that of `eigh` for the eigenvalues."""
    return eigh(a, UPLO)[0]


# -- square matrices -------------------------------------------------------------------------------------------------
def _eig_adjoint(cts: Any, ys: Any, x: Any) -> Any:
    (ct_w, ct_u), (w, u) = cts, ys
    inner = None if ct_w is None else _diagonal_matrix(ct_w)
    inverse = solved(T(u), eye_like(u))
    if ct_u is not None:
        m = T(u) @ ct_u
        # eigenvectors have length 1, so the component that would change the length is removed
        length = (T(u) @ conj(u)) * _row(real(_diagonal(m)))
        same = _same(w)
        inner = _add(inner, _inverse_gaps(w, same) * (m - length) + _undetermined_op(m, same))
    g = inverse @ inner @ T(u)
    if raw(u).shape[-1]:  # without a basis of eigenvectors the entries of the inverse are as large as rounding allows
        size = max(absolute(inverse), (-2, -1), keepdims=True)
        has_none = size * (_ROUNDING * epsilon(u.dtype)) >= 1
        g = g * where(has_none, np.nan, size * 0 + 1)  # a factor, because forward mode transposes this rule
    return astype(g, x.dtype) if x.dtype.kind != "c" else g


_eig_op = Several(
    "eig", "N", np.linalg.eig, _eig_adjoint, saves="y0", operands="a", dims=_batches(1, 2),
    outputs=lambda x: [(x.shape[:-1], np.result_type(inexact(x), np.complex64)),
                       (x.shape, np.result_type(inexact(x), np.complex64))],
)  # fmt: skip


@instead_of(np.linalg.eig)
def eig(a: Any) -> Any | tuple[Any, ...]:
    """Return eigenvalues and eigenvectors (of length 1) of square matrices, real if all eigenvalues are real.

    Adjoint: ``inv(v).T @ (diag(ct_w) + (v.T @ ct_v) / (w_j - w_i)) @ v.T``, with 0 on the diagonal of the quotient, for
    ``a @ v = v @ diag(w)`` (Giles 2008, section 3.1), and the term of the normalisation of `v`. Where eigenvalues
    coincide, see `eigh`. The gradient at a matrix without a basis of eigenvectors is NaN, or a LinAlgError.
    """
    found = _eig_op(a)
    decided(np.iscomplexobj, raw(found[0]))  # a captured step of real ones cannot be replayed for complex ones
    return found


@instead_of(np.linalg.eigvals)
def eigvals(a: Any) -> Any:
    """Return the eigenvalues of square matrices. Adjoint: that of `eig` for the eigenvalues."""
    return eig(a)[0]


# -- singular values -------------------------------------------------------------------------------------------------
def _svd_adjoint(cts: Any, ys: Any, x: Any, full: bool) -> Any:
    (ct_u, ct_s, ct_vh), (u, s, vh) = cts, ys
    v = H(vh)
    inner = None if ct_s is None else astype(_diagonal_matrix(ct_s), x.dtype)
    of_u = None if ct_u is None else T(u) @ ct_u
    of_v = None if ct_vh is None else T(v) @ H(ct_vh)
    if of_u is not None or of_v is not None:
        same, total = _same(s), _row(s) + _column(s)
        gaps = _inverse_gaps(s, same) / where(total == 0, 1, total)  # 1 / (s_j**2 - s_i**2)
    if of_u is not None:
        inner = _add(inner, (gaps * (of_u - H(of_u))) * _row(s) + _undetermined_op(of_u, same))
        if x.dtype.kind == "c":  # the common phase of a pair of singular vectors is set by the left one
            inner = inner + _diagonal_matrix(imag(_diagonal(of_u)) * _inverse(s)) * 1j
    if of_v is not None:
        inner = _add(inner, _column(s) * (gaps * (of_v - H(of_v))) + _undetermined_op(of_v, same))
    g = conj(u) @ inner @ T(v)
    rows, columns = x.shape[-2:]
    if ct_u is not None and rows > columns:
        scaled = (ct_u * _row(_inverse(s))) @ T(v)
        g = g + scaled - conj(u) @ (T(u) @ scaled)
    if ct_vh is not None and rows < columns:
        scaled = (conj(u) * _row(_inverse(s))) @ ct_vh
        g = g + scaled - (scaled @ conj(v)) @ T(v)
    return g


def _svd_outputs(x: Any, full: bool) -> Any:
    m, n = x.shape[-2:]
    k, batch, dtype = (m if m < n else n), x.shape[:-2], inexact(x)
    return [((*batch, m, m if full else k), dtype), ((*batch, k), _real(dtype)), ((*batch, n if full else k, n), dtype)]


_svd_op = Several(
    "svd", "N", lambda x, full: np.linalg.svd(x, full_matrices=full), _svd_adjoint, saves="y0", operands="a",
    dims=_batches(2, 1, 2), outputs=_svd_outputs,
)  # fmt: skip


@instead_of(np.linalg.svd)
def svd(a: Any, full_matrices: bool = True, compute_uv: bool = True, hermitian: bool = False) -> Any | tuple[Any, ...]:
    """Return the singular value decomposition ``(u, s, vh)`` of matrices, or `s` alone without `compute_uv`.

    Where singular values coincide, and at a singular value 0 of a matrix that is not square, the gradient of a function
    that uses the singular vectors is NaN: see `eigh`. Of a function of the singular values alone it is right where it
    exists.

    Raises
    ------
    NotDifferentiable
        `full_matrices=True` for matrices that are not square, while a tape records: the singular vectors that belong
        to no singular value are not determined, and have no derivative.
    """
    if hermitian:  # from their eigenvalues: s = |w|, vh = sign(w) u^H
        w, v = eigh(a)
        order = np.argsort(np.abs(raw(w)))[..., ::-1]
        w = take_along_axis(w, order, -1)
        if not compute_uv:
            return absolute(w)
        u = take_along_axis(v, order[..., None, :], -1)
        return np.linalg._linalg.SVDResult(u, absolute(w), H(u * _row(sign(w))))
    if not compute_uv:
        return svdvals(a)
    rows, columns = raw(a).shape[-2:]
    if full_matrices and rows != columns and followed(a):
        raise NotDifferentiable(
            f"svd of {rows} by {columns} matrices with full_matrices=True: singular vectors that belong to no singular "
            "value are not determined and have no derivative. Fix: full_matrices=False"
        )
    return _svd_op(a, options=(bool(full_matrices),))


@instead_of(np.linalg.svdvals)
def svdvals(x: Any) -> Any:
    """Return the singular values of matrices, in descending order.

    Adjoint: that of `svd` for the singular values, ``u @ diag(ct) @ vh``.
    """
    return _svd_op(x, options=(False,))[1]


# -- triangular factors ----------------------------------------------------------------------------------------------
_SMALL = 16
"""Up to this size LAPACK's inverse is as fast as products of halves; beyond it takes several times as long."""


def _inverse_of_lower(x: Any) -> Any:
    """The inverse of triangular matrices; ``[[1/a, 0], [-(1/c) b (1/a), 1/c]]`` is that of ``[[a, 0], [b, c]]``.

    Both halves are inverted as one batch. Where n is odd, c gets a last row of the identity, to be as large as a.
    """
    n = x.shape[-1]
    if n <= _SMALL:
        return np.tril(np.linalg.inv(x))
    k = n - n // 2
    halves = np.zeros_like(x, shape=(2, *x.shape[:-2], k, k))
    halves[1, ..., -1, -1] = 1
    halves[0], halves[1, ..., : n - k, : n - k] = x[..., :k, :k], x[..., k:, k:]
    found = _inverse_of_lower(halves)
    a, c = found[0], found[1, ..., : n - k, : n - k]
    y = np.zeros_like(x)
    y[..., :k, :k], y[..., k:, k:] = a, c
    y[..., k:, :k] = -(c @ x[..., k:, :k] @ a)
    return y


_inverse_of_lower_op = op(
    "inverse_of_lower", "N", by_shape(_inverse_of_lower, lambda x: x.shape),
    lambda ct, y, x: tril(-(T(y) @ ct @ T(y))), saves="y", dims=matrix_dims, operands="a",
    tangent=(lambda dx, y, x: -(y @ tril(dx) @ y),),
)  # fmt: skip


def _cholesky_adjoint(ct: Any, y: Any, x: Any) -> Any:
    inner = tril(T(y) @ ct) * (1 - eye_like(y) * 0.5)
    inner = inner - _diagonal_matrix(astype(imag(_diagonal(inner)), inner.dtype)) * 1j if x.dtype.kind == "c" else inner
    inverse = _inverse_of_lower_op(y)
    g = T(inverse) @ inner @ conj(inverse)
    return (g + H(g)) * 0.5


_cholesky_op = op(
    "cholesky", "N", by_shape(np.linalg.cholesky, lambda x: x.shape), _cholesky_adjoint, saves="y0",
    dims=matrix_dims, operands="a",
)  # fmt: skip


@instead_of(np.linalg.cholesky)
def cholesky(a: Any, /, *, upper: bool = False) -> Any:
    """Return the triangular Cholesky factor of positive definite matrices, the lower one by default.

    The matrices are Hermitian, and so is the cotangent that they get.
    """
    factor = _cholesky_op(a)
    return H(factor) if upper else factor


def _qr_adjoint(cts: Any, ys: Any, x: Any) -> Any:
    (ct_q, ct_r), (q, r) = cts, ys
    n = x.shape[-1]
    inner: Any = None if ct_r is None else ct_r @ T(r)
    w: Any = None if inner is None else -inner
    if ct_q is not None:
        w = _add(w, T(q) @ ct_q)
    rotation = tril(w - H(w), -1)
    if x.dtype.kind == "c":
        rotation = rotation + _diagonal_matrix(astype(imag(_diagonal(w)), w.dtype)) * 1j
    g = conj(q) @ _add(inner, rotation)
    if ct_q is not None and x.shape[-2] > n:
        g = g + ct_q - conj(q) @ (T(q) @ ct_q)
    if n:
        size = absolute(_diagonal(r))
        r = r + _diagonal_matrix(astype(where(size <= _least(size), np.nan, 0), r.dtype))
    return T(solved(r, T(g)))


_qr_op = Several(
    "qr", "N", lambda x: np.linalg.qr(x), _qr_adjoint, saves="y0", operands="a", dims=_batches(2, 2),
    outputs=lambda x: [(x.shape, inexact(x)), ((*x.shape[:-2], x.shape[-1], x.shape[-1]), inexact(x))],
)  # fmt: skip


@instead_of(np.linalg.qr)
def qr(a: Any, mode: str = "reduced") -> Any | tuple[Any, ...]:
    """Return ``(q, r)`` with orthonormal columns q and upper triangular r, where ``a = q @ r``; `r` with mode "r".

    Adjoint: ``(q @ (ct_r @ r.T + tril(w - w.T, -1)) + ct_q - q @ q.T @ ct_q) @ inv(r).T`` with ``w = q.T @ ct_q - ct_r
    @ r.T``, for real matrices. Where the columns are linearly dependent there is no derivative, and the gradient is
    NaN.

    Raises
    ------
    NotDifferentiable
        A mode other than "reduced" and "r" (and "complete" where it is the same as "reduced").
    """
    rows, columns = raw(a).shape[-2:]
    if mode not in ("reduced", "r", "complete") or (mode == "complete" and rows > columns):
        text = f"qr of {rows} by {columns} matrices with mode={mode!r}; needed: 'reduced' or 'r'"
        raise NotDifferentiable(text)
    if rows >= columns:
        q, r = _qr_op(a)
    else:  # the first columns determine q; the others are projected on it
        q, first = _qr_op(a[..., :rows])
        r = concatenate([first, H(q) @ a[..., rows:]], -1)
    return r if mode == "r" else np.linalg._linalg.QRResult(q, r)
