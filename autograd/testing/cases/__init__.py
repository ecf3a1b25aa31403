"""The cases of every operation: what the registry's tests draw, and what ``python -m autograd registry`` lists.

A topic is a file, imported here; an operation that has neither a case nor a reason in `WITHOUT_DERIVATIVE` fails the
tests. Nothing in the engine imports this package.
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
from .drawn import draw

__all__ = [
    "CASES", "FAMILIES", "MEMORIES", "REAL_ONLY", "WITHOUT_DERIVATIVE", "Argument", "Case", "Pick", "Use", "apart",
    "between", "case", "draw", "family", "normal", "offset", "positive", "real_only", "strided",
]  # fmt: skip
