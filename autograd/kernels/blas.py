"""``y = a x + b y`` in one pass, by the BLAS that NumPy is linked with: NumPy itself takes three, and a scratch array.

The function is looked up in the library that is loaded already (through NumPy's own extension module, whose
dependencies the search includes), under the names that NumPy's wheels and other builds give it, and is tried once on a
few numbers. Where it is not found (Accelerate, Windows), or ``RINGTAPE_BLAS=0``, `find_axpby` returns None and whoever
asked uses NumPy's functions.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

__all__ = ["find_axpby"]

_LETTERS = {"f": ("s", ctypes.c_float), "d": ("d", ctypes.c_double)}
_NAMES = (  # of OpenBLAS in NumPy's wheels; of builds with 64-bit and with 32-bit integers
    ("scipy_cblas_{}axpby64_", ctypes.c_int64),
    ("cblas_{}axpby64_", ctypes.c_int64),
    ("cblas_{}axpby", ctypes.c_int),
)


@cache
def find_axpby(dtype: Any) -> Callable[[int, float, int, int, float, int, int], None] | None:
    """The function for a dtype, of (n, a, address of x, stride, b, address of y, stride), or None.

    Examples
    --------
    >>> from autograd.kernels.blas import find_axpby
    >>> import numpy
    >>> find_axpby(numpy.dtype("float16")) is None
    True
    """
    if not dtype.isnative or dtype.char not in _LETTERS or os.environ.get("RINGTAPE_BLAS") == "0":
        return None
    letter, real = _LETTERS[dtype.char]
    try:
        library = ctypes.CDLL(np._core._multiarray_umath.__file__)  # type: ignore[attr-defined]  # private
    except (AttributeError, OSError, TypeError):
        return None
    for name, integer in _NAMES:
        function: Any = getattr(library, name.format(letter), None)
        if function is not None:
            function.restype = None
            function.argtypes = [integer, real, ctypes.c_void_p, integer, real, ctypes.c_void_p, integer]
            return function if _works(function, dtype) else None
    return None


def _works(function: Any, dtype: Any) -> bool:
    x, y = np.arange(37, dtype=dtype), np.ones(37, dtype)
    function(37, 2.0, x.ctypes.data, 1, -3.0, y.ctypes.data, 1)
    return bool(np.array_equal(y, 2 * np.arange(37) - 3))
