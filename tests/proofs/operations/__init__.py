"""Test cases of all operations, one file for each group of operations.

The tests of the registry run them, and ``python -m autograd registry`` uses them as examples. A test fails for an
operation that has neither a case nor a reason in `WITHOUT_DERIVATIVE`. Only tests and tools import this package.
"""

from __future__ import annotations

from . import (
    elementwise,
    fourier,
    indexing,
    linalg,
    manipulation,
    matmul,
    nn,
    nn_fused,
    nn_softmax,
    reductions,
    shape,
    sorting,
    special,
    statistics,
    ufuncs,
)
from .base import (
    CASES,
    FAMILIES,
    MEMORIES,
    REAL_ONLY,
    WITHOUT_DERIVATIVE,
    Argument,
    Case,
    Use,
    apart,
    between,
    case,
    family,
    normal,
    offset,
    positive,
    real_only,
    strided,
)
from .choices import Pick
from .families import draw

__all__ = [
    "CASES", "FAMILIES", "MEMORIES", "REAL_ONLY", "WITHOUT_DERIVATIVE", "Argument", "Case", "Pick", "Use", "apart",
    "between", "case", "draw", "family", "normal", "offset", "positive", "real_only", "strided",
]  # fmt: skip
