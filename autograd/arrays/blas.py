"""BLAS libraries beside NumPy's, called by ctypes. See `products`, which chooses one."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray

from ..errors import OptionError
from ..files import is_for_everyone

__all__ = ["LEAST", "Library", "named", "path_of_mkl"]

LEAST = 1 << 19
"""With fewer multiply-adds the call by ctypes, 2 us, is a part of the time that counts."""

_ROW_MAJOR, _AS_IT_IS, _TRANSPOSED = 101, 111, 112  # CBLAS_ORDER and CBLAS_TRANSPOSE
_MKL_SEQUENTIAL = 1


class Library:
    """A library with CBLAS's ``cblas_sgemm`` and ``cblas_dgemm``.

    Parameters
    ----------
    path : str
        A file, or a name that the loader of the system finds.

    Raises
    ------
    OptionError
        The library cannot be loaded, or has no such functions.
    """

    def __init__(self, path: str):
        self.path = path
        if os.path.exists(path) and is_for_everyone(path):
            raise OptionError(
                f"RINGTAPE_BLAS={path!r}: every user can write this library, which would run here\n"
                "  fix: chmod o-w on it and on its folders, or another library"
            )
        try:
            loaded = ctypes.CDLL(path)
        except OSError as error:
            raise OptionError(
                f"RINGTAPE_BLAS={path!r}: the library cannot be loaded: {error}\n"
                "  fix: the path of a shared library with CBLAS's functions; or mkl after pip install mkl"
            ) from error
        if hasattr(loaded, "MKL_Set_Threading_Layer"):
            loaded.MKL_Set_Threading_Layer(_MKL_SEQUENTIAL)  # one thread a rank; others would need OpenMP's library
        self._functions = {char: _gemm(loaded, path, char) for char in "fd"}

    def dot(self, a: Any, b: Any, out: Any = None) -> Any:
        """``a @ b`` of two arrays, as ``numpy.dot`` has it; to `out`, if it is given."""
        if not (a.__class__ is b.__class__ is ndarray and a.ndim == b.ndim == 2 and a.dtype is b.dtype):
            return np.dot(a, b, out)
        (m, k), (rows, n) = a.shape, b.shape
        gemm = self._functions.get(a.dtype.char)
        if gemm is None or m * n * k < LEAST or k != rows:
            return np.dot(a, b, out)
        of_a, of_b, y = _order(a), _order(b), np.empty((m, n), a.dtype) if out is None else out
        if of_a is None or of_b is None or not (y.flags.c_contiguous and y.dtype is a.dtype and y.shape == (m, n)):
            return np.dot(a, b, out)
        gemm(_ROW_MAJOR, of_a[0], of_b[0], m, n, k, 1.0, a.ctypes.data, of_a[1], b.ctypes.data, of_b[1], 0.0,
             y.ctypes.data, n)  # fmt: skip
        return y

    def matmul(self, a: Any, b: Any) -> Any:
        """``a @ b`` of any operands."""
        return self.dot(a, b) if a.__class__ is b.__class__ is ndarray and a.ndim == b.ndim == 2 else a @ b


def _gemm(loaded: Any, path: str, char: str) -> Callable[..., None]:
    """The function for the dtype with a character. Libraries add to its name, above all for integers of 64 bits."""
    real = {"f": ctypes.c_float, "d": ctypes.c_double}[char]
    for before in ("", "scipy_"):
        for after, integer in (("", ctypes.c_int), ("64_", ctypes.c_int64), ("_64", ctypes.c_int64)):
            found = getattr(loaded, f"{before}cblas_{'s' if char == 'f' else 'd'}gemm{after}", None)
            if found is not None:
                array = (ctypes.c_void_p, integer)
                found.argtypes = (*(ctypes.c_int,) * 3, *(integer,) * 3, real, *array, *array, real, *array)
                found.restype = None
                return found
    raise OptionError(
        f"RINGTAPE_BLAS={path!r}: the library has no cblas_sgemm and cblas_dgemm\n"
        "  fix: the path of a BLAS library with CBLAS's functions, such as libopenblas.so; or mkl"
    )


def _order(x: ndarray) -> tuple[int, int] | None:
    """The order in which CBLAS reads a matrix, and the distance of its rows or columns; None if it cannot."""
    (down, right), size, (rows, columns) = x.strides, x.itemsize, x.shape
    if not x.flags.aligned:
        return None
    if right == size and down % size == 0 and down >= columns * size:
        return _AS_IT_IS, down // size
    if down == size and right % size == 0 and right >= rows * size:
        return _TRANSPOSED, right // size
    return None


def path_of_mkl(folders: Sequence[str] = (sys.prefix, sys.base_prefix)) -> str | None:
    """The library of Intel's MKL that is installed, or None."""
    for folder in folders:
        found = sorted(Path(folder, "lib").glob("libmkl_rt.so*"))
        if found:
            return str(found[-1])
    from ctypes.util import find_library  # it starts a compiler, if there is one

    return find_library("mkl_rt")


def named(name: str) -> Library:
    """The library that ``RINGTAPE_BLAS`` names: ``mkl``, or a path."""
    path = path_of_mkl() if name == "mkl" else name
    if path is None:
        raise OptionError("RINGTAPE_BLAS='mkl': MKL is not installed in this environment\n  fix: pip install mkl")
    return Library(path)
