"""Arithmetic of float16 on the CPU: computed in float32 and rounded once.

BLAS has no float16, and NumPy's own loops for it take about a hundred times as long as the conversion and a float32
product. NumPy's sums of float16 along a dimension that is not the last one round after each addition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np
from numpy import ndarray

__all__ = ["HALF", "in_float32", "is_half", "product", "rounded", "total", "widened"]

HALF = np.dtype(np.float16)
_SINGLE = np.dtype(np.float32)
_LEAST_NORMAL = _SINGLE.type(2.0**-14)
_SPACED = _SINGLE.type(0.75)
"""In float32 its neighbours are 2**-24 apart, as the subnormal numbers of float16 are."""
_matmul: Any = np.matmul
_add_reduce: Any = np.add.reduce  # np.sum without the overhead of its wrapper

Function = Callable[..., Any]


def is_half(dtype: Any) -> bool:
    """Whether a dtype is float16 or bfloat16, of which sums and updates are made in float32."""
    return bool(dtype.itemsize == 2 and (dtype.kind == "f" or dtype.name == "bfloat16"))


def widened(x: Any) -> Any:
    """A NumPy array of float16 in float32; anything else unchanged."""
    return x.astype(_SINGLE) if x.__class__ is ndarray and x.dtype == HALF else x


def rounded(x: Any) -> Any:
    """A float32 array in float16. What is beyond 65504 becomes infinite, without a warning; None stays None.

    Examples
    --------
    >>> import numpy
    >>> rounded(numpy.array([1.0, 1e5], "float32"))
    array([ 1., inf], dtype=float16)
    """
    if x is None:
        return None
    if x.__class__ is ndarray and (tiny := np.abs(x) < _LEAST_NORMAL).any():
        # NumPy takes 50 times as long for a number that it rounds to a subnormal one
        x = np.copysign(np.where(tiny, (x + _SPACED) - _SPACED, x), x)
    with np.errstate(over="ignore"):  # an overflow is what loss scaling looks for
        return x.astype(HALF)


def in_float32(function: Function) -> Function:
    """Make a function of two arrays and further arguments that computes NumPy's float16 in float32, rounded once."""

    @wraps(function)
    def compute(a: Any, b: Any, *options: Any) -> Any:
        if a.__class__ is ndarray and a.dtype is HALF and b.__class__ is ndarray and b.dtype is HALF:
            return rounded(function(a.astype(_SINGLE), b.astype(_SINGLE), *options))
        return function(a, b, *options)

    return compute


def product(a: Any, b: Any) -> Any:
    """Return ``a @ b``; of float16 on the CPU in float32, rounded once."""
    if a.__class__ is ndarray and a.dtype is HALF and b.__class__ is ndarray and b.dtype is HALF:
        return rounded(_matmul(a.astype(_SINGLE), b.astype(_SINGLE)))
    return a @ b


def total(x: ndarray, axes: int | Sequence[int] | None, keepdims: bool = False) -> Any:
    """Return the sum of a NumPy array over some dimensions; of float16 in float32, rounded once."""
    if x.dtype is HALF:
        return rounded(_add_reduce(x, axes, _SINGLE, None, keepdims))
    return _add_reduce(x, axes, None, None, keepdims)
