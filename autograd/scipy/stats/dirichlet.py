"""The Dirichlet distribution with concentrations ``alpha``."""

from __future__ import annotations

from typing import Any

from ...engine.primitive import op
from ...errors import typed_errors
from ...ops import concatenate, exp, log, reshape, sum
from .._load import as_ufunc, scipy
from ..special import psi

__all__ = ["logpdf", "pdf", "rvs"]

_theirs = scipy("stats").dirichlet
rvs = _theirs.rvs


def _column(alpha: Any, x: Any) -> Any:
    """Concentrations reshaped to broadcast with points in columns."""
    return reshape(alpha, (*(int(n) for n in alpha.shape), *(1,) * (len(x.shape) - 1)))


def _adjoint_of_alpha(ct: Any, y: Any, x: Any, alpha: Any) -> Any:
    g = ct * (_column(psi(sum(alpha)) - psi(alpha), x) + log(x))
    return g if len(x.shape) == 1 else sum(g, axis=tuple(range(1, len(x.shape))))


_logpdf = op(
    "dirichlet.logpdf", "N N", as_ufunc(_theirs.logpdf, lambda x, alpha: x.shape[1:]),
    (lambda ct, y, x, alpha: ct * (_column(alpha, x) - 1) / x, _adjoint_of_alpha), saves="01", operands="x alpha",
)  # fmt: skip


@typed_errors
def logpdf(x: Any, alpha: Any) -> Any:
    """Return the logarithm of the density at a point of the simplex, or at several points in columns.

    As in SciPy, the last coordinate of the points may be left out.
    """
    if hasattr(x, "shape") and hasattr(alpha, "shape") and x.shape and x.shape[0] == alpha.shape[0] - 1:
        x = concatenate([x, 1 - sum(x, axis=0, keepdims=True)], axis=0)
    return _logpdf(x, alpha)


@typed_errors
def pdf(x: Any, alpha: Any) -> Any:
    """Return the density; see `logpdf`."""
    return exp(logpdf(x, alpha))
