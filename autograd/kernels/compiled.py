"""Loads the loops of `loops`, compiled by Numba if it is installed (``pip install ringtape[fast]``).

A loop is compiled at its first use, for one dtype, which takes about a second. Numba keeps the result on disk, and the
next process loads it in half a second (`load` does so before there is work). A process needs some 50 MiB of its own for
it, and a host 95 MiB for Numba's library. Results differ from NumPy's by rounding, so all ranks should have Numba or
none. ``RINGTAPE_COMPILED=0`` turns the loops off.
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

__all__ = ["INT64", "LEAST", "are_bare", "find", "fitting", "load"]

INT64 = dtype_of("int64")
LEAST = 1 << 14
"""Below this number of elements NumPy's calls are as fast: the arrays stay in the cache."""


_DTYPES = {
    "adam": "fd", "momentum": "fd", "layer_norm": "fd", "layer_norm_backward": "fd", "gelu": "f",
    "cross_entropy": "f", "cross_entropy_backward": "f", "relu_backward": "f",
}  # fmt: skip
"""The loops, with the characters of their dtypes. Loops that serve small arrays too are for float32 only, so that small
programs, which mostly use float64, need not wait for Numba's import."""


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
    """The module `loops`, or None without Numba."""
    if os.environ.get("RINGTAPE_COMPILED") == "0" or find_spec("numba") is None:
        return None
    try:
        from . import loops  # imports Numba, which takes half a second: only when a loop is first needed
    except ImportError as error:  # mostly a NumPy that is too new for it
        warnings.warn(f"Numba cannot be imported, so NumPy does its work, more slowly: {error}", stacklevel=4)
        return None
    return loops


def load(dtype: Any = "float32") -> int:
    """Compile or load all loops of a dtype now, not at their first use; return how many there are.

    Examples
    --------
    >>> from autograd.kernels.compiled import load
    >>> load("float16")
    0
    """
    return sum(find(name, dtype_of(dtype)) is not None for name in _DTYPES)


def fitting(name: str, *arrays: Any) -> Callable[..., bool | None] | None:
    """The loop for arrays of the first one's dtype and size; None where NumPy is as fast, or it cannot take them."""
    x = arrays[0]
    loop = find(name, x.dtype) if x.size >= LEAST else None
    return loop if loop is not None and are_bare(x.dtype, *arrays) else None


def are_bare(dtype: Any, *arrays: Any) -> bool:
    """Whether all are C-contiguous NumPy arrays of a dtype, as a loop reads them."""
    for x in arrays:
        if x.__class__ is not ndarray or x.dtype is not dtype or not (x.flags.c_contiguous and x.flags.aligned):
            return False
    return True
