"""Loads the loops of `loops`, compiled by Numba if it is installed (``pip install ringtape[fast]``).

A loop is compiled for one dtype at its first use, which takes about a second. Numba caches the result on disk, and the
next process loads it in half a second (`load` does so in advance). The loops take about 50 MiB in each process, and
Numba's library 95 MiB per host. Results differ from NumPy's by rounding, so either all ranks should have Numba or none.
``RINGTAPE_COMPILED=0`` turns the loops off.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any

from numpy import dtype as dtype_of
from numpy import ndarray

from ..doors import door, is_there
from ..environment import value

__all__ = ["INT64", "LEAST", "are_bare", "compiled_loops", "find", "fitting", "load"]

INT64 = dtype_of("int64")
_PLAIN_FLAGS = 0x1 | 0x100  # NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED; one read of `flags` in place of two
LEAST = 1 << 14
"""Below this number of elements NumPy is as fast, because the arrays stay in the cache."""


_DTYPES = {
    "adam": "fd", "momentum": "fd", "layer_norm": "fd", "layer_norm_backward": "fd", "gelu": "f",
    "sum_rows": "fd", "cross_entropy": "f", "cross_entropy_backward": "f", "relu_backward": "f",
}  # fmt: skip
"""The loops, with the characters of their dtypes. Loops that also serve small arrays support float32 only, so that
small programs, which mostly use float64, do not wait for Numba's import."""


def find(name: str, dtype: Any) -> Callable[..., bool | None] | None:
    """The loop for arrays of one dtype, float32 or float64; None without Numba, or without a loop for the dtype.

    Examples
    --------
    >>> from autograd.kernels.compiled import find
    >>> import numpy
    >>> find("adam", numpy.dtype("float16")) is None
    True
    """
    found = _found(name, dtype)
    makers = stands_for.makers
    return makers[-1](found) if makers and found is not None else found


class _StandsFor(threading.local):
    """While this thread traces functions: what makes, of a loop, a function that takes traced arrays, too.

    `whole` does it for a function that is called as a whole, such as one of SciPy: it writes to no argument, and
    returns new arrays, whose forms depend on those of the arguments alone. `has_loops` is whether the trace becomes
    compiled loops, in which a choice by values costs less than picking elements, whose number depends on them.
    """

    def __init__(self) -> None:
        self.makers: list[Callable[[Any], Any]] = []
        self.whole: Callable[..., Any] | None = None
        self.has_loops = False


stands_for = _StandsFor()


@cache  # of loops and dtypes; without it each call of a loop takes 4 ms more
def _found(name: str, dtype: Any) -> Callable[..., bool | None] | None:
    if dtype.char not in _DTYPES[name] or not dtype.isnative or (loops := compiled_loops()) is None:
        return None
    found: Callable[..., bool | None] | None = loops.compiled(name, dtype.name)
    return found


@cache  # one entry; without it a Numba that cannot be imported is tried, and told, again and again
def compiled_loops() -> Any:
    """The module `loops`, or None without Numba.

    Examples
    --------
    >>> from autograd.kernels.compiled import compiled_loops
    >>> compiled_loops() is None or compiled_loops().compiled.__name__
    'compiled'
    """
    if value("RINGTAPE_COMPILED") == "0" or find_spec("numba") is None or not is_there("compiled loops"):
        return None
    try:
        return door("compiled loops")  # imports Numba, which takes half a second, when the first loop is needed
    except ImportError as error:  # usually because NumPy is too new for it
        warnings.warn(f"Numba cannot be imported, so ringtape uses NumPy, which is slower: {error}", stacklevel=4)
        return None


def load(dtype: Any = "float32") -> int:
    """Compile or load all loops of a dtype now instead of at their first use, and return their number.

    Examples
    --------
    >>> from autograd.kernels.compiled import load
    >>> load("float16")
    0
    """
    return sum(find(name, dtype_of(dtype)) is not None for name in _DTYPES)


def fitting(name: str, *arrays: Any) -> Callable[..., bool | None] | None:
    """The loop for these arrays; None where NumPy is as fast, or if the loop does not support the arrays."""
    x = arrays[0]
    loop = find(name, x.dtype) if x.size >= LEAST else None
    return loop if loop is not None and are_bare(x.dtype, *arrays) else None


def are_bare(dtype: Any, *arrays: Any) -> bool:
    """Whether all are aligned C-contiguous NumPy arrays of a dtype, as the loops need."""
    for x in arrays:
        if x.__class__ is not ndarray or x.dtype is not dtype or x.flags.num & _PLAIN_FLAGS != _PLAIN_FLAGS:
            return False
    return True
