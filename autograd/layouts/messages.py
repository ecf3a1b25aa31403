"""Values as messages show them, ``f32[8,64] {dp: V, tp: I}``, and the errors that lead to a message.

The texts themselves are in `texts`, `refusals` and `names`, which are loaded when the first error is told.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import short

__all__ = ["REJECTED", "Refused", "describe"]


def describe(array: Any, shape: Any, layout: Any) -> str:
    """``f32[8,64] {dp: V, tp: I}``

    Examples
    --------
    >>> import numpy
    >>> describe(numpy.zeros((8, 64), "float32"), (8, 64), None)
    'f32[8,64]'
    """
    dtype = getattr(array, "dtype", None)
    where = "" if layout is None else f" {layout!r}"
    if dtype is None and not shape:
        shown = array if isinstance(array, bool | int | float | complex | np.generic) else short(array)
        return f"number{'' if array is None else f' {shown}'}{where}"
    kind = {"f": "f", "c": "c", "i": "i", "u": "u", "b": "bool"}.get(getattr(dtype, "kind", ""), "")
    name = "bool" if kind == "bool" else f"{kind}{dtype.itemsize * 8}" if kind and dtype is not None else "number"
    name = "bf16" if getattr(dtype, "name", "") == "bfloat16" else name
    return f"{name}[{','.join(str(int(n)) for n in shape)}]{where}"


class Refused(Exception):
    """The reason why labels do not mix: a key of `refusals.REASONS`, and the indices of the operands."""


REJECTED = ValueError, TypeError, IndexError, OverflowError, AttributeError
"""The errors with which NumPy's functions refuse operands."""
