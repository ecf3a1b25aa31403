"""Products of two matrices of the host: by the BLAS of NumPy, or by the library that ``RINGTAPE_BLAS`` names.

The large products of linear layers take most of the time of a large step, and no library is the fastest on every
processor. ``RINGTAPE_BLAS=mkl`` takes Intel's, if it is installed in this environment (``pip install mkl``), and
``RINGTAPE_BLAS=/path/of/a/library.so`` any other that has CBLAS's functions. ``python -m collectives doctor --details``
measures what MKL would bring here. Results differ by rounding, so all ranks should use the same library; checkpoints
and records name it. Products of less than `blas.LEAST` multiply-adds, of other dtypes than float32 and float64, and of
matrices without contiguous rows or columns are NumPy's in any case.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy import ndarray

from ..environment import value
from .device import runtime_of
from .half import is_half, rounded

__all__ = ["dot", "library", "matmul", "product", "product_of_rows"]

_SINGLE, _DOUBLE = np.dtype(np.float32), np.dtype(np.float64)

_LARGE = 1 << 22
"""From so many multiply-adds on, one product of all rows takes 0.95 of the time of one per batch; below, up to 1.2."""


def _chosen() -> Any:
    if not (name := value("RINGTAPE_BLAS")):
        return None
    from .blas import named

    return named(name)


library = _chosen()
"""The `blas.Library` that the environment names; None for NumPy's own."""


def _dot(a: Any, b: Any, out: Any = None) -> Any:
    return a.dot(b, out)


dot: Callable[..., Any] = _dot if library is None else library.dot
"""``dot(a, b, out=None)`` of matrices. (The method of arrays takes three quarters of the time of ``numpy.dot``.)"""

matmul: Callable[[Any, Any], Any] = operator.matmul if library is None else library.matmul
"""``matmul(a, b)`` of any operands."""


def product_of_rows(a: ndarray, b: ndarray) -> Any:
    """``a @ b`` of more than two dimensions by two, as one product; None where one per batch is as fast."""
    n = b.shape[1]
    if a.size * n < _LARGE or a.shape[-1] != len(b) or not a.flags.c_contiguous:
        return None
    return dot(a.reshape(-1, a.shape[-1]), b).reshape(*a.shape[:-1], n)


def product(a: Any, b: Any) -> Any:
    """Return ``a @ b``; of float16 on the CPU in float32, rounded once. On a GPU it is computed by its runtime."""
    if a.__class__ is ndarray and b.__class__ is ndarray:
        dtype = a.dtype
        if dtype is not _SINGLE and dtype is not _DOUBLE and dtype == b.dtype and is_half(dtype):
            return rounded(np.matmul(a.astype(_SINGLE), b.astype(_SINGLE)), dtype)
        if a.ndim > 2 and b.ndim == 2 and (y := product_of_rows(a, b)) is not None:
            return y
    elif a.__class__ is not ndarray and (runtime := runtime_of(a.__class__)) is not None:
        return runtime.matmul(a, b)
    return matmul(a, b)
