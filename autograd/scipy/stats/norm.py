"""The normal distribution."""

from __future__ import annotations

from ._family import family

__all__ = ["cdf", "logcdf", "logpdf", "logsf", "pdf", "sf"]

pdf, logpdf, cdf, logcdf, sf, logsf = family("norm", (), lambda z: -z, ())
