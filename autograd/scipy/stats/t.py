"""Student's t distribution with ``df`` degrees of freedom."""

from __future__ import annotations

from typing import Any

from ...ops import log1p
from ..special import psi
from ._family import family

__all__ = ["cdf", "logcdf", "logpdf", "logsf", "pdf", "sf"]


def _score_of_df(z: Any, df: Any) -> Any:
    square = z * z
    return 0.5 * (psi((df + 1) / 2) - psi(df / 2) - log1p(square / df) + (square - 1) / (df + square))


pdf, logpdf, cdf, logcdf, sf, logsf = family("t", ("df",), lambda z, df: -z * (df + 1) / (df + z * z), (_score_of_df,))
