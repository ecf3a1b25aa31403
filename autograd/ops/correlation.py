"""Convolution and correlation of sequences, covariances, and polynomials."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arrays.shape_only import Shaped
from ..engine.primitive import Primitive, op
from ..engine.tensor import TENSORS
from ..layouts.layout import Mix
from .arguments import instead_of, operand, operands, raw, refuse_parts
from .contractions import matmul
from .creation import zeros_like
from .elementwise import conj, imag, real, sqrt, where
from .manipulation import diagonal
from .reductions import sum
from .shape import concatenate, expand_dims, squeeze, swapaxes
from .statistics import average
from .ufuncs import clip


# -- sequences -------------------------------------------------------------------------------------------------------
def _convolve(a: Any, v: Any) -> Any:
    if type(a) is Shaped or type(v) is Shaped:
        shape = (a.shape[0] + v.shape[0] - 1,)
        return Shaped(shape, np.result_type(a.dtype, v.dtype), (a if type(a) is Shaped else v).why)
    return np.convolve(a, v)


def _others(ct: Any, v: Any) -> Any:
    """The cotangent of one sequence, given the other: the middle of the convolution of `ct` with it, reversed."""
    m = raw(v).shape[0]
    return _convolve_op(ct, v[::-1])[m - 1 : raw(ct).shape[0]]


_convolve_op: Primitive = op(
    "convolve", "a b", _convolve, (lambda ct, y, a, v: _others(ct, v), lambda ct, y, a, v: _others(ct, a)), saves="01",
    dims=lambda shapes, options: [(Mix,), (Mix,)], operands="a v",
)  # fmt: skip


def _sequences(caller: str, a: Any, v: Any) -> tuple[Any, Any]:
    """The operands as whole sequences; a number is an array of its own dtype, and a sequence of one element."""
    a, v = operands(*(x if x.__class__ in TENSORS else np.asarray(x) for x in (a, v)))
    refuse_parts(caller, (a, v))
    a, v = (expand_dims(x, 0) if x.ndim == 0 else x for x in (a, v))
    return a, v


def _part_of_full(y: Any, n: int, m: int, mode: Any) -> Any:
    """The elements of a full convolution that a mode of NumPy returns, for extents n and m; NumPy checks the mode."""
    short, long = sorted((n, m))
    if mode in ("full", 2):
        return y
    if mode in ("valid", 0):
        return y[short - 1 : long]
    start = short - short // 2 - 1
    return y[start : start + long]


@instead_of(np.convolve)
def convolve(a: Any, v: Any, mode: Any = "full") -> Any:
    """Return the convolution ``y[k] = sum_i a[i] v[k - i]`` of two sequences.

    Adjoint: the convolution of the cotangent with the other sequence, reversed.
    """
    a, v = _sequences("convolve", a, v)
    return _part_of_full(_convolve_op(a, v), raw(a).shape[0], raw(v).shape[0], mode)


@instead_of(np.correlate)
def correlate(a: Any, v: Any, mode: Any = "valid") -> Any:
    """Return the correlation ``y[k] = sum_n a[n + k] conj(v[n])`` of two sequences.

    Adjoint: that of the convolution of `a` with the reversed conjugate of `v`.
    """
    a, v = _sequences("correlate", a, v)
    n, m = raw(a).shape[0], raw(v).shape[0]
    if m > n:  # NumPy correlates the longer sequence with the shorter one, and reverses the result
        return _part_of_full(_convolve_op(a, conj(v)[::-1])[::-1], n, m, mode)[::-1]
    return _part_of_full(_convolve_op(a, conj(v)[::-1]), n, m, mode)


# -- covariances -----------------------------------------------------------------------------------------------------
@instead_of(np.cov, in_float32=True)
def cov(
    m: Any, y: Any = None, rowvar: bool = True, bias: bool = False, ddof: int | None = None, fweights: Any = None,
    aweights: Any = None, *, dtype: Any = None,
) -> Any:  # fmt: skip
    """Return the matrix of covariances of variables, whose observations are the rows of `m`, or its columns.

    Adjoint: that of ``(m - mean) @ (m - mean).H / (n - ddof)``. Weights may have derivatives, too.
    """
    return _covariance("cov", m, y, rowvar, bias, ddof, fweights, aweights, dtype)


def _degrees_of_freedom(columns: int, ddof: Any, bias: Any, total: Any, w: Any, aweights: Any) -> Any:
    """The divisor of a covariance of `columns` observations, or of the sums `total` of their weights `w`."""
    ddof = (0 if bias else 1) if ddof is None else ddof
    if w is None:
        freedom: Any = columns - ddof
    elif not ddof:
        freedom = total[0]
    elif aweights is None:
        freedom = total[0] - ddof
    else:
        freedom = total[0] - ddof * sum(w * aweights) / total[0]
    # a sum of weights is not read: it may be on a device, or have a shape only
    return where(freedom <= 0, 0, freedom) if freedom.__class__ in TENSORS else max(freedom, 0)


def _covariance(
    caller: str, m: Any, y: Any, rowvar: Any, bias: Any, ddof: Any, fweights: Any, aweights: Any, dtype: Any
) -> Any:
    given = [operand(x) for x in (m, y) if x is not None]
    weights = [operand(w) for w in (fweights, aweights) if w is not None]
    refuse_parts(caller, given + weights)
    wide = np.result_type(*(x.dtype for x in given), np.float64) if dtype is None else dtype
    rows: list[Any] = []
    for x in given:
        x = x.astype(wide)
        x = expand_dims(x, tuple(range(2 - x.ndim))) if x.ndim < 2 else x
        if not rows and not raw(x).shape[0 if rowvar else -1]:
            return real(matmul(x, swapaxes(x, 0, 1))).astype(float)[:0, :0]
        rows.append(x if rowvar or raw(x).shape[0] == 1 else swapaxes(x, 0, 1))
    x = concatenate(rows, 0) if len(rows) > 1 else rows[0]
    w: Any = None
    for each in weights:
        w = each if w is None else w * each
    mean, total = average(x, 1, w, returned=True)
    freedom = _degrees_of_freedom(raw(x).shape[1], ddof, bias, total, w, None if aweights is None else weights[-1])
    centred = x - expand_dims(mean, 1)
    weighted = centred if w is None else centred * w
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = float(np.true_divide(1, freedom)) if freedom.__class__ not in TENSORS else 1 / freedom
        return squeeze(matmul(centred, conj(swapaxes(weighted, 0, 1))) * factor)


@instead_of(np.corrcoef, in_float32=True)
def corrcoef(x: Any, y: Any = None, rowvar: bool = True, *, dtype: Any = None) -> Any:
    """Return the matrix of correlation coefficients of variables: their covariances over standard deviations.

    Adjoint: those of `cov` and of the quotient; 0 for coefficients of 1 and -1.
    """
    c = _covariance("corrcoef", x, y, rowvar, False, None, None, None, dtype)
    if c.ndim == 0:
        return c / c
    scale = sqrt(real(diagonal(c)))
    c = c / expand_dims(scale, 1) / scale
    return clip(real(c), -1, 1) + clip(imag(c), -1, 1) * 1j if c.dtype.kind == "c" else clip(c, -1, 1)


# -- polynomials -----------------------------------------------------------------------------------------------------
@instead_of(np.polyval, in_float32=True)
def polyval(p: Any, x: Any) -> Any:
    """Return the polynomial with the coefficients `p`, the highest power first, at `x`, by Horner's rule.

    Adjoint: ``ct * p'(x)`` for `x`, and the sums of ``ct * x**k`` for the coefficients.
    """
    p, x = operand(p), operand(x)
    refuse_parts("polyval", (p,))
    y = zeros_like(x)
    for i in range(raw(p).shape[0]):
        y = y * x + p[i]
    return y


__all__ = ["convolve", "corrcoef", "correlate", "cov", "polyval"]
