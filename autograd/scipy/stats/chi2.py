"""The chi-squared distribution with ``df`` degrees of freedom."""

from __future__ import annotations

from ...ops import log
from ..special import psi
from ._family import family

__all__ = ["cdf", "logcdf", "logpdf", "logsf", "pdf", "sf"]

pdf, logpdf, cdf, logcdf, sf, logsf = family(
    "chi2", ("df",), lambda z, df: (df / 2 - 1) / z - 0.5, (lambda z, df: 0.5 * (log(z / 2) - psi(df / 2)),)
)
