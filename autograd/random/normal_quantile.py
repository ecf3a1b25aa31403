"""Quantile and distribution function of the normal distribution, bitwise the same on every machine.

Only operations that IEEE 754 rounds exactly are used. The approximation is PPND16; `random.normal` names the source.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ..kernels import stands_for

__all__ = ["cumulative", "quantile", "standard_normal"]

Array = np.ndarray[Any, Any]

# Coefficients of PPND16, from the highest power down.
_CENTRE = (
    (2.5090809287301226727e3, 3.3430575583588128105e4, 6.7265770927008700853e4, 4.5921953931549871457e4,
     1.3731693765509461125e4, 1.9715909503065514427e3, 1.3314166789178437745e2, 3.3871328727963666080e0),
    (5.2264952788528545610e3, 2.8729085735721942674e4, 3.9307895800092710610e4, 2.1213794301586595867e4,
     5.3941960214247511077e3, 6.8718700749205790830e2, 4.2313330701600911252e1, 1.0),
)
_TAIL = (
    (7.74545014278341407640e-4, 2.27238449892691845833e-2, 2.41780725177450611770e-1, 1.27045825245236838258e0,
     3.64784832476320460504e0, 5.76949722146069140550e0, 4.63033784615654529590e0, 1.42343711074968357734e0),
    (1.05075007164441684324e-9, 5.47593808499534494600e-4, 1.51986665636164571966e-2, 1.48103976427480074590e-1,
     6.89767334985100004550e-1, 1.67638483018380384940e0, 2.05319162663775882187e0, 1.0),
)
_FAR_TAIL = (
    (2.01033439929228813265e-7, 2.71155556874348757815e-5, 1.24266094738807843860e-3, 2.65321895265761230930e-2,
     2.96560571828504891230e-1, 1.78482653991729133580e0, 5.46378491116411436990e0, 6.65790464350110377720e0),
    (2.04426310338993978564e-15, 1.42151175831644588870e-7, 1.84631831751005468180e-5, 7.86869131145613259100e-4,
     1.48753612908506148525e-2, 1.36929880922735805310e-1, 5.99832206555887937690e-1, 1.0),
)


def standard_normal(words: Array) -> Array:
    """Return one standard normal number per word, increasing with the word read as a signed integer."""
    # s and its distance from +-2^52 are exact in float64, so both tails have the same resolution.
    s = (words.view(np.int64) >> 11) + 0.5
    return _quantile(s * 2.0**-53, s, lambda s: (2.0**52 - np.abs(s)) * 2.0**-53)


def quantile(p: Array) -> Array:
    """Return the inverse of the normal distribution function, for 0 < p < 1."""
    return _quantile(p - 0.5, p, lambda p: np.minimum(p, 1 - p))


def _quantile(q: Array, given: Array, tail_probability: Callable[[Array], Array]) -> Array:
    """Return the normal quantile at 1/2 + q.

    `tail_probability` returns 1/2 - |q| of what is `given`. It is not computed from q, where it would lose digits.
    """

    def tail(q: Array, given: Array) -> Array:
        r = np.sqrt(_minus_log(tail_probability(given)))
        z = _chosen(r > 5.0, far_tail, (r,), _rational(_TAIL, r - 1.6))  # one number in 36,000,000,000
        return np.copysign(z, q)

    def far_tail(r: Array) -> Array:
        return _rational(_FAR_TAIL, r - 5.0)

    r = 0.180625 - q * q
    is_tail = r < 0  # |q| > 0.425
    return _chosen(is_tail, tail, (q, given), q * _rational(_CENTRE, np.maximum(r, 0.0, out=r)))


def _chosen(test: Array, function: Callable[..., Array], xs: tuple[Array, ...], others: Array) -> Array:
    """Values of a function where a test is true, and `others`, which may be written, elsewhere."""
    if stands_for.has_loops:
        return np.where(test, function(*xs), others)
    at = np.flatnonzero(test)
    if at.size:
        others[at] = function(*[x[at] for x in xs])
    return others


def _rational(coefficients: tuple[tuple[float, ...], tuple[float, ...]], r: Array) -> Array:
    numerator, denominator = (_polynomial(c, r) for c in coefficients)
    numerator /= denominator
    return numerator


def _polynomial(coefficients: Sequence[float], r: Array) -> Array:
    y = r * coefficients[0]
    y += coefficients[1]
    for c in coefficients[2:]:
        y *= r
        y += c
    return y


_ATANH = tuple(2.0 / n for n in range(23, 0, -2))
"""Coefficients of the series of 2 atanh(z) / z in z^2, from the highest power down."""


def _minus_log(p: Array) -> Array:
    """Return -log(p), computed with exactly rounded operations."""
    bits = p.view(np.int64)  # as `frexp` of normal numbers, p = m * 2^e, without a call for each
    m, e = ((bits & (2**52 - 1)) | (1022 << 52)).view(np.float64), (bits >> 52) - 1022
    low = m < math.sqrt(0.5)
    m = np.where(low, 2 * m, m)
    z = (m - 1) / (m + 1)  # |z| < 0.172, log m = 2 atanh z
    return (low - e) * math.log(2) - z * _polynomial(_ATANH, z * z)


@lru_cache(maxsize=64)  # of the ends of truncated draws; without it each draw takes 1.6 ms more
def cumulative(x: float) -> float:
    """Return the normal distribution function at x.

    It is found by bisection as the inverse of `quantile`, because `math.erf` differs between machines.
    """
    if x > 0:
        return 1.0 - cumulative(-x)
    low, high = 2.0**-60, 0.5
    if x <= quantile(np.array([low]))[0]:
        return 0.0
    for _ in range(120):
        middle = low + (high - low) / 2
        if middle in (low, high):
            break
        if quantile(np.array([middle]))[0] < x:
            low = middle
        else:
            high = middle
    return high
