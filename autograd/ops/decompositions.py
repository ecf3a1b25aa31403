"""Decompositions: eigenvalues and vectors, singular values, Cholesky, QR.

Where vectors are fixed only up to a sign or a phase, functions that depend on it have no derivative; where values
coincide, the vectors' part that is not determined counts zero. Complex numbers by the bilinear pairing.

Sources: M. Giles (2008), section 3; Z.-Q. Wan and S.-X. Zhang, arXiv:1909.02659 (singular values of complex matrices);
C. Boeddeker et al., arXiv:1701.00392, equation 4.77 (eigenvectors); I. Murray, arXiv:1602.07527 (Cholesky); S. Walter
and L. Lehmann, arXiv:1009.6112 (QR).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..engine.multi_output import Several
from ..engine.primitive import op
from ..errors import NotDifferentiable, call_site
from ..layouts.layout import Mix
from .arguments import followed, instead_of, raw
from .elementwise import astype, conj, imag, real, where
from .linalg import by_shape, solved
from .manipulation import diagonal, make_diagonal, tril, triu
from .shape import concatenate, expand_dims, matrix_transpose

Shape = tuple[int, ...]


def _T(x: Any) -> Any:
    return matrix_transpose(x)


def _H(x: Any) -> Any:
    return conj(matrix_transpose(x))


def _row(x: Any) -> Any:
    return expand_dims(x, -2)


def _column(x: Any) -> Any:
    return expand_dims(x, -1)


def _diagonal(x: Any) -> Any:
    return diagonal(x, 0, -2, -1)


def _on_diagonal(x: Any) -> Any:
    return make_diagonal(x, 0, -2, -1)


def _gaps(values: Any) -> Any:
    """``1 / (v_j - v_i)``, and 0 where they coincide, on the diagonal too."""
    apart = _row(values) - _column(values)
    same = apart == 0
    return where(same, 0, 1 / where(same, 1, apart))


def _plus(a: Any, b: Any) -> Any:
    return b if a is None else a if b is None else a + b


def _inexact(x: Any) -> Any:
    return x.dtype if x.dtype.kind in "fc" else np.dtype(float)


def _real(dtype: Any) -> Any:
    return dtype.type(0).real.dtype


def _batches(*ndims: int) -> Any:
    """The dims of outputs of so many dimensions after the batches."""

    def dims(shapes: Sequence[Shape], options: Any) -> Any:
        (shape,) = shapes
        return [[(*range(len(shape) - 2), Mix, Mix)]] * len(ndims)

    return dims


# -- hermitian matrices ----------------------------------------------------------------------------------------------
def _eigh_rule(cts: Any, ys: Any, x: Any, uplo: str) -> Any:
    (of_w, of_v), (w, v) = cts, ys
    inner = None if of_w is None else _on_diagonal(of_w)
    if of_v is not None:
        inner = _plus(inner, _gaps(w) * (_T(v) @ of_v))
    g = conj(v) @ inner @ _T(v)
    # only one triangle is read; the other is its conjugate, and the diagonal is real
    both = g + _H(g)
    return (tril(both, -1) if uplo == "L" else triu(both, 1)) + _on_diagonal(astype(real(_diagonal(g)), g.dtype))


_eigh_op = Several(
    "eigh", "N", lambda x, uplo: np.linalg.eigh(x, uplo), _eigh_rule, saves="y", operands="a", dims=_batches(1, 2),
    outputs=lambda x, uplo: [(x.shape[:-1], _real(_inexact(x))), (x.shape, _inexact(x))],
)  # fmt: skip


@instead_of(np.linalg.eigh)
def eigh(a: Any, UPLO: str = "L") -> Any:
    """Eigenvalues and eigenvectors of hermitian matrices; only the triangle that is read has a cotangent."""
    return _eigh_op(a, options=(UPLO.upper(),))


@instead_of(np.linalg.eigvalsh)
def eigvalsh(a: Any, UPLO: str = "L") -> Any:
    """Eigenvalues of hermitian matrices."""
    return eigh(a, UPLO)[0]


# -- square matrices -------------------------------------------------------------------------------------------------
def _eig_rule(cts: Any, ys: Any, x: Any) -> Any:
    (of_w, of_u), (w, u) = cts, ys
    inner = None if of_w is None else _on_diagonal(of_w)
    if of_u is not None:
        m = _T(u) @ of_u
        # every vector keeps its length: what would change it is taken out
        length = (_T(u) @ conj(u)) * _row(real(_diagonal(m)))
        inner = _plus(inner, _gaps(w) * (m - length))
    g = solved(_T(u), inner @ _T(u))
    return astype(g, x.dtype) if x.dtype.kind != "c" else g


_eig_op = Several(
    "eig", "N", np.linalg.eig, _eig_rule, saves="y0", operands="a", dims=_batches(1, 2),
    outputs=lambda x: [(x.shape[:-1], np.result_type(_inexact(x), np.complex64)),
                       (x.shape, np.result_type(_inexact(x), np.complex64))],
)  # fmt: skip


@instead_of(np.linalg.eig)
def eig(a: Any) -> Any:
    """Eigenvalues and eigenvectors (of length 1) of square matrices; real where NumPy finds them all real."""
    return _eig_op(a)


@instead_of(np.linalg.eigvals)
def eigvals(a: Any) -> Any:
    """Eigenvalues of square matrices."""
    return eig(a)[0]


# -- singular values -------------------------------------------------------------------------------------------------
def _svd_rule(cts: Any, ys: Any, x: Any, full: bool) -> Any:
    (of_u, of_s, of_vh), (u, s, vh) = cts, ys
    v = _H(vh)
    gaps = _gaps(s * s)
    inner = None if of_s is None else astype(_on_diagonal(of_s), x.dtype)
    if of_u is not None:
        m = _T(u) @ of_u
        inner = _plus(inner, (gaps * (m - _H(m))) * _row(s))
        if x.dtype.kind == "c":  # the phase that a pair of vectors has in common is the first one's
            inner = inner + _on_diagonal(imag(_diagonal(m)) / s) * 1j
    if of_vh is not None:
        of_v = _H(of_vh)
        m = _T(v) @ of_v
        inner = _plus(inner, _column(s) * (gaps * (m - _H(m))))
    g = conj(u) @ inner @ _T(v)
    rows, columns = x.shape[-2:]
    if of_u is not None and rows > columns:
        scaled = (of_u / _row(s)) @ _T(v)
        g = g + scaled - conj(u) @ (_T(u) @ scaled)
    if of_vh is not None and rows < columns:
        scaled = (conj(u) / _row(s)) @ of_vh
        g = g + scaled - (scaled @ conj(v)) @ _T(v)
    return g


def _svd_outputs(x: Any, full: bool) -> Any:
    m, n = x.shape[-2:]
    k, batch, dtype = (m if m < n else n), x.shape[:-2], _inexact(x)
    return [((*batch, m, m if full else k), dtype), ((*batch, k), _real(dtype)), ((*batch, n if full else k, n), dtype)]


_svd_op = Several(
    "svd", "N", lambda x, full: np.linalg.svd(x, full_matrices=full), _svd_rule, saves="y0", operands="a",
    dims=_batches(2, 1, 2), outputs=_svd_outputs,
)  # fmt: skip


@instead_of(np.linalg.svd)
def svd(a: Any, full_matrices: bool = True, compute_uv: bool = True, hermitian: bool = False) -> Any:
    """Singular values and vectors.

    Raises
    ------
    NotDifferentiable
        `full_matrices` of matrices that are not square: the vectors beyond the values are not determined.
    """
    if not compute_uv:
        return svdvals(a)
    rows, columns = raw(a).shape[-2:]
    if full_matrices and rows != columns and followed(a):
        raise NotDifferentiable(
            f"svd of {rows} by {columns} matrices with full_matrices=True: vectors that belong to no singular value "
            "are not determined. Fix: full_matrices=False" + call_site()
        )
    return _svd_op(a, options=(bool(full_matrices),))


@instead_of(np.linalg.svdvals)
def svdvals(x: Any) -> Any:
    """Singular values, the largest first."""
    return _svd_op(x, options=(False,))[1]


# -- triangular factors ----------------------------------------------------------------------------------------------
def _halved(x: Any) -> Any:
    return tril(x) - _on_diagonal(_diagonal(x) * 0.5)


def _cholesky_rule(ct: Any, y: Any, x: Any) -> Any:
    inner = _halved(_T(y) @ ct)
    inner = inner - _on_diagonal(astype(imag(_diagonal(inner)), inner.dtype)) * 1j if x.dtype.kind == "c" else inner
    g = _T(solved(_H(y), _T(solved(_T(y), inner))))
    return (g + _H(g)) * 0.5


def _cholesky_dims(shapes: Sequence[Shape], options: Any) -> Any:
    return _batches(2)(shapes, options)[0]


_cholesky_op = op(
    "cholesky", "N", by_shape(np.linalg.cholesky, lambda x: x.shape), _cholesky_rule, saves="y0", dims=_cholesky_dims,
    operands="a",
)  # fmt: skip


@instead_of(np.linalg.cholesky)
def cholesky(a: Any, /, *, upper: bool = False) -> Any:
    """The triangular factor of a positive definite matrix. The matrix is hermitian, and so is its cotangent."""
    factor = _cholesky_op(a)
    return _H(factor) if upper else factor


def _qr_rule(cts: Any, ys: Any, x: Any) -> Any:
    (of_q, of_r), (q, r) = cts, ys
    n = x.shape[-1]
    inner: Any = None if of_r is None else of_r @ _T(r)
    w: Any = None if inner is None else -inner
    if of_q is not None:
        w = _plus(w, _T(q) @ of_q)
    turned = tril(w - _H(w), -1)
    if x.dtype.kind == "c":
        turned = turned + _on_diagonal(astype(imag(_diagonal(w)), w.dtype)) * 1j
    g = conj(q) @ _plus(inner, turned)
    if of_q is not None and x.shape[-2] > n:
        g = g + of_q - conj(q) @ (_T(q) @ of_q)
    return _T(solved(r, _T(g)))


_qr_op = Several(
    "qr", "N", lambda x: np.linalg.qr(x), _qr_rule, saves="y0", operands="a", dims=_batches(2, 2),
    outputs=lambda x: [(x.shape, _inexact(x)), ((*x.shape[:-2], x.shape[-1], x.shape[-1]), _inexact(x))],
)  # fmt: skip


@instead_of(np.linalg.qr)
def qr(a: Any, mode: str = "reduced") -> Any:
    """Orthogonal columns and the triangle that makes the matrix of them."""
    rows, columns = raw(a).shape[-2:]
    if mode not in ("reduced", "r", "complete") or (mode == "complete" and rows > columns):
        raise NotDifferentiable(f"qr of {rows} by {columns} matrices with mode={mode!r}; needed: 'reduced' or 'r'")
    if rows >= columns:
        q, r = _qr_op(a)
    else:  # the first columns decide; the others follow
        q, first = _qr_op(a[..., :rows])
        r = concatenate([first, _H(q) @ a[..., rows:]], -1)
    return r if mode == "r" else np.linalg._linalg.QRResult(q, r)
