"""Conversions between floating dtypes. Each array is read, and written, in accesses of 16 bytes."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np

from ...arrays.device import dtype_name
from .elements import by_elements
from .program import launch_known, program

__all__ = ["cast"]

_NARROW = {"float32": "float", "float16": "Half", "bfloat16": "BFloat16"}
_KINDS = {(x, y): f"cast<{_NARROW[x]}, {_NARROW[y]}>" for x, y in permutations(_NARROW, 2)} | {
    ("float32", "float64"): "cast<float, double>", ("float64", "float32"): "cast<double, float>"
}  # fmt: skip
"""The kernels. From float64 to 16 bits there is none: through float32 the numbers would be rounded twice."""
PROGRAM = program("casts", tuple(_KINDS.values()), ("elements.cuh", "casts.cu"))


def cast(x: Any, dtype: Any) -> Any:
    """`x` in another dtype, rounded to nearest; None without a kernel for the dtypes, or if `x` is not contiguous."""
    kernel = _KINDS.get((dtype_name(x.dtype), dtype_name(dtype)))
    if kernel is None or not x.flags.c_contiguous:
        return None
    y = np.empty_like(x, dtype)
    if x.size:
        most = max(x.itemsize, dtype.itemsize)
        launch_known(PROGRAM, kernel, x.size, lambda: by_elements(x.size, most, 2), x, y)
    return y
