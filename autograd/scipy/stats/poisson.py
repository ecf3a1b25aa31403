"""The Poisson distribution with mean ``mu``. There is no derivative in the counts ``k`` and in ``loc``."""

from __future__ import annotations

from typing import Any

from ... import numpy as np
from ...engine.primitive import op
from ...layouts.inference import broadcast
from .._load import as_ufunc, in_dtype, scipy, without_derivative

__all__ = ["cdf", "logpmf", "pmf"]

_theirs = scipy("stats").poisson
_options: dict[str, Any] = {"saves": "y012", "dims": broadcast, "operands": "k mu loc"}
_pmf = op(
    "poisson.pmf", "S N S", as_ufunc(_theirs.pmf),
    (None, in_dtype(1, lambda ct, y, k, mu, loc: ct * (y * ((k - loc) / mu - 1))), None),
    **_options,
)  # fmt: skip
_logpmf = op(
    "poisson.logpmf", "S N S", as_ufunc(_theirs.logpmf),
    (None, in_dtype(1, lambda ct, y, k, mu, loc: ct * ((k - loc) / mu - 1)), None),
    **_options,
)  # fmt: skip
_cdf = op(
    "poisson.cdf", "S N S", as_ufunc(_theirs.cdf),
    (None, in_dtype(1, lambda ct, y, k, mu, loc: -ct * pmf(np.floor(k), mu, loc)), None), **_options,
)  # fmt: skip
_checked = {o.name: without_derivative(o, 0, 2) for o in (_pmf, _logpmf, _cdf)}


def pmf(k: Any, mu: Any, loc: Any = 0) -> Any:
    """Return the probability of `k`."""
    return _checked["poisson.pmf"](k, mu, loc)


def logpmf(k: Any, mu: Any, loc: Any = 0) -> Any:
    """Return the logarithm of the probability of `k`."""
    return _checked["poisson.logpmf"](k, mu, loc)


def cdf(k: Any, mu: Any, loc: Any = 0) -> Any:
    """Return the probability of at most `k`."""
    return _checked["poisson.cdf"](k, mu, loc)
