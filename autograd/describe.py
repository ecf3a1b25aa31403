"""How errors show a value: ``f32[8,64] {dp: V, tp: I}``."""

from __future__ import annotations

from typing import Any

__all__ = ["describe"]


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
        return f"number {array}{where}"
    kind = {"f": "f", "c": "c", "i": "i", "u": "u", "b": "bool"}.get(getattr(dtype, "kind", ""), "")
    short = "bool" if kind == "bool" else f"{kind}{dtype.itemsize * 8}" if kind and dtype is not None else "number"
    return f"{short}[{','.join(str(int(n)) for n in shape)}]{where}"
