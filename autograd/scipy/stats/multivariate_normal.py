"""The multivariate normal distribution with mean ``mean`` and covariance ``cov``."""

from __future__ import annotations

import math
from typing import Any

import numpy

from ... import numpy as np
from ...errors import NotDifferentiable, typed_errors
from .._load import followed, scipy, traced

__all__ = ["entropy", "logpdf", "pdf", "rvs"]

_theirs = scipy("stats").multivariate_normal
rvs = _theirs.rvs
_LOG_2PI = math.log(2 * math.pi)


@typed_errors
def logpdf(x: Any, mean: Any = None, cov: Any = 1, allow_singular: bool = False) -> Any:
    """Return the logarithm of the density at a point, or at several points in rows.

    Parameters
    ----------
    x : array, shape (..., d)
    mean : array, shape (d,), optional
        By default zeros.
    cov : array, shape (d, d), (d,) for a diagonal matrix, or a number
        Symmetric. Its gradient is symmetric, too: ``sum(gradient * d)`` is the derivative along a symmetric change d.
        SciPy, which computes the value of plain arrays, reads the lower triangle only, so that finite differences of
        single entries are twice the gradient below the diagonal, and 0 above it.
    allow_singular : bool
        Whether `cov` may be singular. The density is then that on the range of `cov`, which gets no gradient.

    Raises
    ------
    NotDifferentiable
        `allow_singular` is set and the tape records the covariance.
    """
    if not traced(x, mean, cov):
        return _theirs.logpdf(x, mean, cov, allow_singular)
    x, mean, cov = _processed(x, mean, cov)
    centered = x - mean
    d = cov.shape[0]
    if allow_singular:
        if followed(cov):
            raise NotDifferentiable(
                "multivariate_normal with allow_singular=True has no derivative with respect to the covariance, which "
                "the tape records: its rank is not differentiable. Fix: allow_singular=False, or stop_gradient(cov)"
            )
        root, log_det, rank = _pseudo_inverse(numpy.asarray(getattr(cov, "array", cov)))
        distance = np.sum(np.square(np.matmul(centered, root)), axis=-1)
    else:
        _, log_det = np.linalg.slogdet(cov)
        rank = d
        rows = np.reshape(centered, (-1, d))
        solved = np.linalg.solve(cov, np.transpose(rows))
        distance = np.reshape(np.sum(rows * np.transpose(solved), axis=-1), tuple(centered.shape[:-1]))
    return np.squeeze(-0.5 * (rank * _LOG_2PI + log_det + distance))


@typed_errors
def pdf(x: Any, mean: Any = None, cov: Any = 1, allow_singular: bool = False) -> Any:
    """Return the density; see `logpdf`."""
    if not traced(x, mean, cov):
        return _theirs.pdf(x, mean, cov, allow_singular)
    return np.exp(logpdf(x, mean, cov, allow_singular))


@typed_errors
def entropy(mean: Any = None, cov: Any = 1) -> Any:
    """Return the differential entropy, which does not depend on the mean."""
    if not traced(mean, cov):
        return _theirs.entropy(mean, cov)
    _, _, cov = _processed(0.0, mean, cov)
    _, log_det = np.linalg.slogdet(cov)
    return 0.5 * (cov.shape[0] * (1 + _LOG_2PI) + log_det)


def _processed(x: Any, mean: Any, cov: Any) -> tuple[Any, Any, Any]:
    """The arguments as SciPy processes them: points in rows, a mean vector, a full covariance matrix."""
    x, cov = (a if traced(a) else numpy.asarray(a, dtype=float) for a in (x, cov))
    if mean is not None and not traced(mean):
        mean = numpy.asarray(mean, dtype=float)
    ndim = len(cov.shape)
    d = cov.shape[0] if ndim else mean.shape[0] if mean is not None and mean.shape else 1
    if ndim < 2:
        cov = cov * numpy.eye(int(d))
    mean = numpy.zeros(int(d)) if mean is None else np.reshape(mean, (int(d),))
    if not x.shape:
        x = np.reshape(x, (1,))
    elif len(x.shape) == 1 and d == 1:
        x = np.reshape(x, (-1, 1))
    return x, mean, cov


def _pseudo_inverse(cov: Any) -> tuple[Any, float, int]:
    """A square root of the pseudo-inverse, the log of the pseudo-determinant and the rank, with SciPy's tolerance."""
    values, vectors = numpy.linalg.eigh(cov)
    kept = values > 1e6 * numpy.finfo(values.dtype).eps * numpy.abs(values).max(initial=0.0)
    scale = numpy.where(kept, 1 / numpy.sqrt(numpy.where(kept, values, 1)), 0)
    return vectors * scale, float(numpy.log(values[kept]).sum()), int(kept.sum())
