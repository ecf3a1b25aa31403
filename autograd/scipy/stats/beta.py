"""The beta distribution with shape parameters ``a`` and ``b``."""

from __future__ import annotations

from ...ops import log, log1p
from ..special import psi
from ._family import family

__all__ = ["cdf", "logcdf", "logpdf", "logsf", "pdf", "sf"]

pdf, logpdf, cdf, logcdf, sf, logsf = family(
    "beta", ("a", "b"), lambda z, a, b: (a - 1) / z - (b - 1) / (1 - z),
    (lambda z, a, b: log(z) - psi(a) + psi(a + b), lambda z, a, b: log1p(-z) - psi(b) + psi(a + b)),
)  # fmt: skip
