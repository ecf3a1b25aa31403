"""The Dirichlet distribution of concentrations ``alpha``."""

from __future__ import annotations

from typing import Any

from ...engine.primitive import op
from ...ops import concatenate, exp, log, reshape, sum
from .._load import as_ufunc, scipy
from ..special import psi

__all__ = ["logpdf", "pdf", "rvs"]

_theirs = scipy("stats").dirichlet
rvs = _theirs.rvs


def _column(alpha: Any, x: Any) -> Any:
    """Concentrations beside points that stand in columns."""
    return reshape(alpha, (*(int(n) for n in alpha.shape), *(1,) * (len(x.shape) - 1)))


def _in_x(ct: Any, y: Any, x: Any, alpha: Any) -> Any:
    return ct * (_column(alpha, x) - 1) / x


def _in_alpha(ct: Any, y: Any, x: Any, alpha: Any) -> Any:
    g = ct * (_column(psi(sum(alpha)) - psi(alpha), x) + log(x))
    return g if len(x.shape) == 1 else sum(g, axis=tuple(range(1, len(x.shape))))


_logpdf = op(
    "dirichlet.logpdf", "N N", as_ufunc(_theirs.logpdf, lambda x, alpha: x.shape[1:]), (_in_x, _in_alpha), saves="01",
    operands="x alpha",
)  # fmt: skip


def logpdf(x: Any, alpha: Any) -> Any:
    """The logarithm of the density at a point of the simplex, or at several in columns.

    As SciPy's, it takes points whose last coordinate is left out.
    """
    if hasattr(x, "shape") and hasattr(alpha, "shape") and x.shape and x.shape[0] == alpha.shape[0] - 1:
        x = concatenate([x, 1 - sum(x, axis=0, keepdims=True)], axis=0)
    return _logpdf(x, alpha)


def pdf(x: Any, alpha: Any) -> Any:
    """The density; see `logpdf`."""
    return exp(logpdf(x, alpha))
