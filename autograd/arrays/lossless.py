"""Conversions of an array to another dtype that lose nothing but by rounding."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import DtypeError
from .device import is_inexact

__all__ = ["refuse_loss"]

_KINDS = "biufc"


def refuse_loss(value: Any, dtype: Any, caller: str, name: str) -> None:
    """Raise DtypeError unless an array on the host may become one of `dtype` without a loss but that of rounding.

    Complex numbers do not become real, nor fractions integers, nor integers others. Floating dtypes are rounded; a
    number that is above the largest one of the dtype is not: it would be infinite.

    Raises
    ------
    DtypeError
        Something would be lost.
    """
    if value.dtype == dtype:
        return
    if is_inexact(dtype) and is_inexact(value.dtype) and (dtype.kind == "c" or value.dtype.kind != "c"):
        _refuse_overflow(value, dtype, caller, name)
        return
    fault = ""
    if value.dtype.kind not in _KINDS or dtype.kind not in _KINDS or _KINDS.index(value.dtype.kind) > _KINDS.index(
        "u" if dtype.kind == "i" else dtype.kind
    ):  # fmt: skip
        fault = {"c": "its imaginary part", "f": "its fractions"}.get(value.dtype.kind, "its values")
    elif dtype.kind in "iu" and value.dtype.kind != "b" and value.size:
        limits = np.iinfo(dtype)
        fault = "" if limits.min <= int(value.min()) and int(value.max()) <= limits.max else "numbers out of its range"
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            if (value.astype(dtype).astype(value.dtype) != value).any():
                fault = "digits of large numbers"
    if fault:
        kept = {"c": "x.real", "f": f"numpy.rint(x).astype({str(dtype)!r})"}.get(value.dtype.kind)
        raise DtypeError(
            f"{caller}: {name} has dtype {value.dtype}; needed: {dtype}, in which {fault} would be lost\n"
            f"  fix: {kept or f'x.astype({str(dtype)!r})'}, if what is left is meant"
        )


def _refuse_overflow(value: Any, dtype: Any, caller: str, name: str) -> None:
    """Raise DtypeError if a finite number of an array would be infinite in another floating dtype."""
    if not value.size or _largest(value.dtype) <= _largest(dtype):
        return
    flat = value.reshape(-1)  # in blocks, which need no memory for a second array
    for start in range(0, flat.size, _BLOCK):
        block = flat[start : start + _BLOCK]
        with np.errstate(over="ignore"):
            lost = ~np.isfinite(block.astype(dtype)) & np.isfinite(block)
        if lost.any():
            most = _largest(dtype)
            clipped = f"numpy.clip(x, {-most:.8g}, {most:.8g}), if the largest number is meant"
            raise DtypeError(
                f"{caller}: {name} has dtype {value.dtype} and the number {block[lost.argmax()]!s}, which would be "
                f"infinite in {dtype}, the dtype that is needed: its largest number is {most:.8g}\n"
                f"  fix: a destination of {value.dtype}"
                + ("" if dtype.kind == "c" else f"\n  or:  {clipped}")
            )


_BLOCK = 1 << 16  # elements


def _largest(dtype: Any) -> Any:
    """The largest number of a floating dtype, of each of its two numbers if it is complex."""
    if dtype.kind == "V":  # bfloat16, which NumPy does not know, has the exponents of float32 and 7 bits of fraction
        return (2 - 2.0**-7) * 2.0**127
    return np.finfo(dtype).max
