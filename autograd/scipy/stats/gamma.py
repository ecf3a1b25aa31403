"""The gamma distribution with shape parameter ``a``."""

from __future__ import annotations

from ...ops import log
from ..special import psi
from ._family import family

__all__ = ["cdf", "logcdf", "logpdf", "logsf", "pdf", "sf"]

pdf, logpdf, cdf, logcdf, sf, logsf = family(
    "gamma", ("a",), lambda z, a: (a - 1) / z - 1, (lambda z, a: log(z) - psi(a),)
)
