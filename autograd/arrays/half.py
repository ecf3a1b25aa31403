"""Arithmetic of float16 and bfloat16 on the CPU: computed in float32 and rounded once.

BLAS has no float16, and NumPy's own loops for it take about a hundred times as long as the conversion and a float32
product. NumPy's sums of float16 along a dimension that is not the last one round after each addition, and all its sums
of bfloat16 do. A formula of several operations overflows in float16 where a square exceeds 65504, and loses numbers
below 6e-8. So the function of an operation that is more than one of NumPy's elementwise functions is declared with
`in_float32`; `engine.promotion` does the same for the rules of all operations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np
from numpy import ndarray

__all__ = ["HALF", "epsilon", "in_float32", "is_half", "narrow", "rounded", "total", "widened"]

HALF = np.dtype(np.float16)
_SINGLE, _DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
_LEAST_NORMAL = _SINGLE.type(2.0**-14)
_SPACED = _SINGLE.type(0.75)
"""In float32 its neighbours are 2**-24 apart, as the subnormal numbers of float16 are."""
_add_reduce: Any = np.add.reduce  # np.sum without the overhead of its wrapper

Function = Callable[..., Any]


def is_half(dtype: Any) -> bool:
    """Whether a dtype is float16 or bfloat16, of which sums and updates are made in float32."""
    return bool(dtype.itemsize == 2 and (dtype.kind == "f" or dtype.name == "bfloat16"))


def narrow(x: Any) -> Any:
    """The dtype of NumPy's arrays and scalars of float16 and bfloat16, else None."""
    if not isinstance(x, _HOST) or x.dtype.itemsize != 2 or not is_half(x.dtype):
        return None
    return x.dtype


def epsilon(dtype: Any) -> float:
    """The machine epsilon of a floating dtype: the distance from 1 to the next number."""
    return 2.0**-7 if dtype.kind == "V" else float(np.finfo(dtype).eps)


_HOST = (ndarray, np.generic)


def widened(x: Any) -> Any:
    """A NumPy array or scalar of float16 or bfloat16 in float32; anything else unchanged."""
    return x if narrow(x) is None else x.astype(_SINGLE)


def rounded(x: Any, dtype: Any = HALF) -> Any:
    """A float32 array in float16 or bfloat16; None stays None. What is too large becomes infinite, without a warning.

    Examples
    --------
    >>> import numpy
    >>> rounded(numpy.array([1.0, 1e5], "float32"))
    array([ 1., inf], dtype=float16)
    """
    if x is None:
        return None
    if x.__class__ is ndarray and x.dtype == _SINGLE and dtype == HALF:
        tiny = np.abs(x) < _LEAST_NORMAL
        # NumPy takes 50 times as long for a number that it rounds to a subnormal one. A trace decides for all values.
        if type(x) is not ndarray or tiny.any():
            x = np.copysign(np.where(tiny, (x + _SPACED) - _SPACED, x), x)
    with np.errstate(over="ignore"):  # an overflow is what loss scaling looks for
        return x.astype(dtype)


def in_float32(function: Function) -> Function:
    """Make a function of arrays and options that computes NumPy's float16 and bfloat16 in float32, rounded once.

    The first argument that is an array of NumPy's decides. Results of other dtypes than float32, such as indices, stay
    as they are, and so does what is no array.

    Examples
    --------
    >>> import numpy
    >>> mean_square = in_float32(lambda x: (x * x).sum() / x.size)
    >>> float(mean_square(numpy.array([300.0, 0.0, 0.0], "float16")))
    30000.0
    """

    @wraps(function)
    def compute(*given: Any) -> Any:
        x = given[0]
        if x.__class__ is ndarray and ((dtype := x.dtype) is _SINGLE or dtype is _DOUBLE):  # found sooner
            return function(*given)
        for x in given:
            if x.__class__ is ndarray or isinstance(x, np.generic):
                if x.dtype.itemsize != 2 or (dtype := narrow(x)) is None:
                    break
                y = function(*[widened(a) for a in given])
                if y.__class__ is tuple:
                    return tuple([_rounded_to(dtype, part) for part in y])
                return _rounded_to(dtype, y)
        return function(*given)

    return compute


def _rounded_to(dtype: Any, y: Any) -> Any:
    return rounded(y, dtype) if isinstance(y, _HOST) and y.dtype == _SINGLE else y


def total(x: ndarray, axes: int | Sequence[int] | None, keepdims: bool = False) -> Any:
    """Return the sum of a NumPy array over some dimensions; of float16 in float32, rounded once."""
    dtype = x.dtype
    if dtype is not _SINGLE and dtype is not _DOUBLE and is_half(dtype):
        wide = x if dtype is HALF else x.astype(_SINGLE)
        return rounded(_add_reduce(wide, axes, _SINGLE, None, keepdims), dtype)
    return _add_reduce(x, axes, None, None, keepdims)
