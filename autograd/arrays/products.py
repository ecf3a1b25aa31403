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

from numpy import ndarray

from ..environment import value

__all__ = ["dot", "library", "matmul"]


def _chosen() -> Any:
    if not (name := value("RINGTAPE_BLAS")):
        return None
    from .blas import named

    return named(name)


library = _chosen()
"""The `blas.Library` that the environment names; None for NumPy's own."""

dot: Callable[..., Any] = ndarray.dot if library is None else library.dot
"""``dot(a, b, out=None)`` of matrices. (The method of arrays takes three quarters of the time of ``numpy.dot``.)"""

matmul: Callable[[Any, Any], Any] = operator.matmul if library is None else library.matmul
"""``matmul(a, b)`` of any operands."""
