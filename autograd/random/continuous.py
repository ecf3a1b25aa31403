"""Random real numbers: `uniform`, `normal` and `truncated_normal`. Each number is made of one word of the stream."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..engine.tensor import Tensor
from ..errors import RingtapeError, typed_errors
from .keys import Key, real
from .normal_quantile import cumulative, quantile, standard_normal
from .philox import Numbers, draw, floating, whole_capture
from .placement import Part

__all__ = ["normal", "truncated_normal", "uniform"]

Array = np.ndarray[Any, Any]


@typed_errors
def uniform(
    key: Key,
    shape: int | Sequence[int] | Tensor,
    *,
    low: float = 0.0,
    high: float = 1.0,
    dtype: Any = np.float64,
    part: Part | None = None,
) -> Any:
    """Draw uniform numbers from [low, high).

    Parameters
    ----------
    key : Key
        The stream.
    shape : int, sequence of int or Tensor
        The shape of the logical tensor; or the Tensor that the draw is for.
    low, high : float
        The bounds, rounded to `dtype`. `high` itself is never returned, unless it equals `low`.
    dtype : dtype
        float64, float32 or float16.
    part : tuple of slice, optional
        The part to make; all of it by default. See `autograd.random` on this and on shape.

    Returns
    -------
    numpy.ndarray or Tensor
        The part. Bitwise ``uniform(key, shape, ...)[part]``.

    Raises
    ------
    RingtapeError
        If a bound is not finite in `dtype`, or low > high.
    ShapeError, LayoutError, DtypeError
        As every draw does: see `autograd.random`.

    Notes
    -----
    The upper 53 bits of the element's word, times 2^-53, scaled to the interval.

    Examples
    --------
    >>> whole = uniform(Key(1, "weight"), (4, 3), low=-1, high=1)
    >>> mine = uniform(Key(1, "weight"), (4, 3), low=-1, high=1, part=(slice(2, 4), slice(0, 3)))
    >>> bool((mine == whole[2:4]).all())
    True
    """
    if (capture := whole_capture(low, high)) is not None:
        return capture.call(uniform, (key, shape), {"low": low, "high": high, "dtype": dtype, "part": part})
    dtype = floating(dtype, "uniform")
    low, high = real(low, "uniform: low"), real(high, "uniform: high")
    with np.errstate(over="ignore"):  # reported below
        bottom, top = dtype.type(low), dtype.type(high)
    span = float(top) - float(bottom)
    if not (math.isfinite(span) and span >= 0):
        raise RingtapeError(f"uniform: low={low!r}, high={high!r}; needed: finite in {dtype}, and low <= high")
    greatest = np.nextafter(top, bottom)  # the sum, or rounding it to dtype, may reach top
    made = Numbers("uniform", (span * 2.0**-53, float(bottom), 0.0, float(greatest)))
    return draw(key, shape, part, dtype, _uniform, "uniform", made, numbers=(low, high))


def _uniform(words: Array, dtype: Any, unit: float, base: float, least: float, greatest: float) -> Array:
    x = (words >> 11) * unit
    x += base
    return np.minimum(x.astype(dtype, copy=False), dtype.type(greatest))


@typed_errors
def normal(
    key: Key,
    shape: int | Sequence[int] | Tensor,
    *,
    mean: float = 0.0,
    std: float = 1.0,
    dtype: Any = np.float64,
    part: Part | None = None,
) -> Any:
    """Draw normally distributed numbers.

    Parameters
    ----------
    key : Key
        The stream.
    shape : int, sequence of int or Tensor
        The shape of the logical tensor; or the Tensor that the draw is for.
    mean, std : float
        Mean and standard deviation.
    dtype : dtype
        float64, float32 or float16.
    part : tuple of slice, optional
        The part to make; all of it by default. See `autograd.random` on this and on shape.

    Returns
    -------
    numpy.ndarray or Tensor
        The part. Bitwise ``normal(key, shape, ...)[part]``. No number lies more than 8.3 std from the mean.

    Raises
    ------
    RingtapeError
        If mean or std is not finite, or std < 0.
    ShapeError, LayoutError, DtypeError
        As every draw does: see `autograd.random`.

    Notes
    -----
    The upper 53 bits of the element's word select one of 2^53 equal cells of (0, 1). The number is the normal quantile
    at the middle of the cell, computed by the rational approximations PPND16 of M. J. Wichura, "Algorithm AS 241: the
    percentage points of the normal distribution", Applied Statistics 37 (1988), with a relative error below 1e-15.

    Examples
    --------
    >>> x = normal(Key(1, "weight"), (1000, 8), std=0.02, dtype="float32")
    >>> x.dtype, bool(abs(x.mean()) < 1e-3), bool(abs(x.std() - 0.02) < 1e-3)
    (dtype('float32'), True, True)
    """
    if (capture := whole_capture(mean, std)) is not None:
        return capture.call(normal, (key, shape), {"mean": mean, "std": std, "dtype": dtype, "part": part})
    dtype = floating(dtype, "normal")
    mean, std = real(mean, "normal: mean"), real(std, "normal: std")
    if not (math.isfinite(mean) and math.isfinite(std) and std >= 0):
        raise RingtapeError(f"normal: mean={mean!r}, std={std!r}; needed: finite, and std >= 0")
    return draw(key, shape, part, dtype, _normal, "normal", Numbers("normal", (std, mean)), numbers=(mean, std))


def _normal(words: Array, dtype: Any, std: float, mean: float) -> Array:
    x = standard_normal(words)
    x *= std
    x += mean
    return x


@typed_errors
def truncated_normal(
    key: Key,
    shape: int | Sequence[int] | Tensor,
    *,
    mean: float = 0.0,
    std: float = 1.0,
    low: float = -2.0,
    high: float = 2.0,
    dtype: Any = np.float64,
    part: Part | None = None,
) -> Any:
    """Draw from the normal distribution truncated to [low, high].

    Parameters
    ----------
    key : Key
        The stream.
    shape : int, sequence of int or Tensor
        The shape of the logical tensor; or the Tensor that the draw is for.
    mean, std : float
        Mean and standard deviation of the normal distribution before truncation.
    low, high : float
        The bounds, as values and not in units of `std`.
    dtype : dtype
        float64, float32 or float16.
    part : tuple of slice, optional
        The part to make; all of it by default. See `autograd.random` on this and on shape.

    Returns
    -------
    numpy.ndarray or Tensor
        The part. Bitwise ``truncated_normal(key, shape, ...)[part]``.

    Raises
    ------
    RingtapeError
        If a parameter is not finite, std <= 0, low >= high, or the probability between the bounds is 0 in float64.
    ShapeError, LayoutError, DtypeError
        As every draw does: see `autograd.random`.

    Notes
    -----
    The normal quantile at a uniform number between the values of the distribution function at the bounds, so that each
    number needs one word.

    Examples
    --------
    >>> x = truncated_normal(Key(1, "weight"), 1000, std=0.02, low=-0.04, high=0.04)
    >>> bool(abs(x).max() <= 0.04), bool(abs(x.std() / 0.02 - 0.88) < 0.05)
    (True, True)
    """
    given = {"mean": mean, "std": std, "low": low, "high": high}
    if (capture := whole_capture(mean, std, low, high)) is not None:
        return capture.call(truncated_normal, (key, shape), {**given, "dtype": dtype, "part": part})
    dtype = floating(dtype, "truncated_normal")
    mean, std, low, high = (real(value, f"truncated_normal: {name}") for name, value in given.items())
    if not (math.isfinite(mean + std + low + high) and std > 0 and low < high):
        raise RingtapeError(
            f"truncated_normal: mean={mean!r}, std={std!r}, low={low!r}, high={high!r}; needed: finite, std > 0, "
            "low < high"
        )
    bottom, top = cumulative((low - mean) / std), cumulative((high - mean) / std)
    width = 2.0**-53 * (top - bottom)
    if not bottom < top:
        raise RingtapeError(
            f"truncated_normal: low={low!r}, high={high!r}, mean={mean!r}, std={std!r}: the probability between the "
            "bounds is 0 in float64. Fix: bounds nearer to the mean"
        )
    made = Numbers("truncated_normal", (std, mean, low, high, width, bottom))
    return draw(key, shape, part, dtype, _truncated, "truncated_normal", made, numbers=(mean, std, low, high))


def _truncated(
    words: Array, dtype: Any, std: float, mean: float, low: float, high: float, width: float, bottom: float
) -> Array:
    x = ((words >> 11) + 0.5) * width + bottom
    x = quantile(np.clip(x, 2.0**-54, 1 - 2.0**-53)) * std + mean
    return np.clip(x, low, high).astype(dtype, copy=False)
