"""What BLAS does in one pass and NumPy does in two or three: ``y = a x + b y``, and ``y += a b`` of matrices.

The functions are looked up in the library that is loaded already (through NumPy's own extension module, whose
dependencies the search includes), under the names that NumPy's wheels and other builds give them, and each is tried
once on a few numbers. Where one is not found (Accelerate, Windows), or with ``RINGTAPE_BLAS=0``, NumPy's functions do
the same.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

__all__ = ["add_product", "adds_products", "find_axpby"]

_LETTERS = {"f": ("s", ctypes.c_float), "d": ("d", ctypes.c_double)}
_NAMES = (  # of OpenBLAS in NumPy's wheels; of builds with 64-bit and with 32-bit integers
    ("scipy_cblas_{}64_", ctypes.c_int64),
    ("cblas_{}64_", ctypes.c_int64),
    ("cblas_{}", ctypes.c_int),
)
_ROW_MAJOR, _PLAIN, _TRANSPOSED = 101, 111, 112  # of cblas.h


def _find(name: str, dtype: Any) -> tuple[Any, Any, Any] | None:
    """The function of a name for a dtype, and what it takes for integers and for numbers; None without it."""
    if not dtype.isnative or dtype.char not in _LETTERS or os.environ.get("RINGTAPE_BLAS") == "0":
        return None
    letter, real = _LETTERS[dtype.char]
    try:
        library = ctypes.CDLL(np._core._multiarray_umath.__file__)  # type: ignore[attr-defined]  # private
    except (AttributeError, OSError, TypeError):
        return None
    for form, integer in _NAMES:
        function: Any = getattr(library, form.format(letter + name), None)
        if function is not None:
            function.restype = None
            return function, integer, real
    return None


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
    found = _find("axpby", dtype)
    if found is None:
        return None
    function, integer, real = found
    function.argtypes = [integer, real, ctypes.c_void_p, integer, real, ctypes.c_void_p, integer]
    x, y = np.arange(37, dtype=dtype), np.ones(37, dtype)
    function(37, 2.0, x.ctypes.data, 1, -3.0, y.ctypes.data, 1)
    return function if np.array_equal(y, 2 * np.arange(37) - 3) else None


@cache
def _find_gemm(dtype: Any) -> Any:
    found = _find("gemm", dtype)
    if found is None:
        return None
    function, integer, real = found
    matrix = [ctypes.c_void_p, integer]
    function.argtypes = [*[ctypes.c_int] * 3, *[integer] * 3, real, *matrix, *matrix, real, *matrix]
    a, b = np.arange(15, dtype=dtype).reshape(3, 5), np.arange(20, dtype=dtype).reshape(4, 5).T
    y = np.ones((3, 4), dtype)
    expected = a.dot(b) + 1
    _add_product(function, a, b, y)
    return function if np.array_equal(y, expected) else None


def adds_products(dtype: Any) -> bool:
    """Whether `add_product` is one pass for a dtype.

    Examples
    --------
    >>> from autograd.kernels.blas import adds_products
    >>> import numpy
    >>> adds_products(numpy.dtype("float16"))
    False
    """
    return _find_gemm(dtype) is not None


def add_product(a: Any, b: Any, out: Any) -> None:
    """``out += a @ b`` of matrices of one dtype, without an array for the product.

    Parameters
    ----------
    a, b : [m, k], [k, n]
        Arrays of which either dimension may be the one whose elements lie side by side. Neither may overlap `out`.
    out : [m, n]

    Examples
    --------
    >>> import numpy
    >>> from autograd.kernels.blas import add_product
    >>> y = numpy.ones((2, 2))
    >>> add_product(numpy.eye(2), numpy.array([[1.0, 2.0], [3.0, 4.0]]), y)
    >>> y
    array([[2., 3.],
           [4., 5.]])
    """
    function = _find_gemm(out.dtype)
    if function is None or not _add_product(function, a, b, out):
        out += a @ b


def _add_product(function: Any, a: Any, b: Any, out: Any) -> bool:
    """Whether the arrays are as BLAS wants them; if so it is done."""
    (m, k), (_, n) = a.shape, b.shape
    if out.shape != (m, n) or b.shape[0] != k or not a.dtype == b.dtype == out.dtype or not (m and n and k):
        return False
    left, right, whole = _form(a), _form(b), _form(out)
    if left is None or right is None or whole is None or whole[0] != _PLAIN or not out.flags.writeable:
        return False
    (ta, la), (tb, lb), (_, lc) = left, right, whole
    function(
        _ROW_MAJOR, ta, tb, m, n, k, 1.0, a.ctypes.data, la, b.ctypes.data, lb, 1.0, out.ctypes.data, lc
    )
    return True


def _form(x: Any) -> tuple[int, int] | None:
    """How BLAS sees a matrix: as it is or transposed, and from row to row how many elements; None if it cannot."""
    (rows, columns), (down, along), size = x.shape, x.strides, x.itemsize
    if along == size and down % size == 0 and down >= size * columns:
        return _PLAIN, down // size
    if down == size and along % size == 0 and along >= size * rows:
        return _TRANSPOSED, along // size
    return None
