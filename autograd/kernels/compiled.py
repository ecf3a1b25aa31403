"""Where the loops of `loops` are to be had: compiled by Numba, if it is installed (``pip install ringtape[fast]``).

A loop is compiled at its first use, for one dtype, which takes about a second; Numba keeps the result on disk, so the
next process only loads it, in half a second (`load` does so before there is work). That costs a process some 50 MiB of
its own, and a host 95 MiB for Numba's library. Results differ from NumPy's by rounding only, so all ranks should have
Numba or none; with ``RINGTAPE_COMPILED=0`` none has.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any

from numpy import dtype as dtype_of
from numpy import ndarray

__all__ = ["INT64", "LEAST", "NO_LABEL", "are_bare", "find", "fitting", "load"]

INT64 = dtype_of("int64")
NO_LABEL = -(2**63)
"""What a loop takes for the label to ignore where there is none."""

LEAST = 1 << 14
"""Fewer elements are not worth a compiler: NumPy's calls cost less than a cache holds."""


_DTYPES = {
    "adam": "fd", "momentum": "fd", "layer_norm": "fd", "layer_norm_backward": "fd", "attention": "f", "gelu": "f",
    "cross_entropy": "f", "cross_entropy_backward": "f", "relu_backward": "f", "change": "f",
}  # fmt: skip
"""The loops, and the characters of the dtypes that each is for. What is of use to small arrays too is for float32 only:
programs of float64, small ones mostly, need not wait for Numba to be imported."""


@cache
def find(name: str, dtype: Any) -> Callable[..., bool | None] | None:
    """A loop for arrays of one dtype, float32 or float64; None without Numba, or if there is none for the dtype.

    Examples
    --------
    >>> from autograd.kernels.compiled import find
    >>> import numpy
    >>> find("adam", numpy.dtype("float16")) is None
    True
    """
    if dtype.char not in _DTYPES[name] or not dtype.isnative or (loops := _loops()) is None:
        return None
    found: Callable[..., bool | None] | None = loops.compiled(name, dtype.name)
    return found


@cache
def _loops() -> Any:
    """The module of that name, or None where Numba is not to be had."""
    if os.environ.get("RINGTAPE_COMPILED") == "0" or find_spec("numba") is None:
        return None
    try:
        from . import loops
    except ImportError as error:  # mostly a NumPy that is too new for it
        warnings.warn(f"NumPy does what Numba could do faster, since it cannot be imported: {error}", stacklevel=4)
        return None
    return loops


def load(dtype: Any = "float32") -> int:
    """Have all loops of a dtype ready now, and not at their first use; return how many there are.

    Examples
    --------
    >>> from autograd.kernels.compiled import load
    >>> load("float16")
    0
    """
    return sum(find(name, dtype_of(dtype)) is not None for name in _DTYPES)


def fitting(name: str, *arrays: Any) -> Callable[..., bool | None] | None:
    """The loop for arrays of the first one's dtype and size; None where it is not worth it, or cannot take them."""
    x = arrays[0]
    loop = find(name, x.dtype) if x.size >= LEAST else None
    return loop if loop is not None and are_bare(x.dtype, *arrays) else None


def are_bare(dtype: Any, *arrays: Any) -> bool:
    """Whether all are NumPy's own arrays of a dtype, their elements side by side in order, as a loop reads them."""
    for x in arrays:
        if x.__class__ is not ndarray or x.dtype is not dtype or not (x.flags.c_contiguous and x.flags.aligned):
            return False
    return True
