"""The index objects ``r_`` and ``c_``, and `astype` as a function with NumPy's signature."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..ops import elementwise
from ..ops.arguments import operand, operands, tensors_in
from ..ops.creation import atleast_1d
from ..ops.shape import concatenate, reshape

__all__ = ["astype", "c_", "r_"]


def astype(x: Any, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Any:
    """Return `x` converted to another dtype; `copy` and `device` are ignored.

    Adjoint: the cotangent converted to the dtype of `x`.
    """
    return elementwise.astype(operand(x), dtype)


class _IndexConcatenation:
    """``r_[a, b]`` joins arrays along the first axis, ``c_[a, b]`` as columns; slices stand for ranges."""

    def __init__(self, theirs: Any, columns: bool):
        self._theirs = theirs
        self._columns = columns

    def __getitem__(self, key: Any) -> Any:
        parts = key if isinstance(key, tuple) else (key,)
        if not tensors_in(parts):
            return self._theirs[key]
        given = operands(*(np.r_[part] if isinstance(part, slice) else part for part in parts))
        xs = [atleast_1d(x) for x in given]
        if self._columns:
            xs = [reshape(x, (-1, 1)) if x.ndim == 1 else x for x in xs]
        return concatenate(xs, -1 if self._columns else 0)


r_, c_ = _IndexConcatenation(np.r_, columns=False), _IndexConcatenation(np.c_, columns=True)
