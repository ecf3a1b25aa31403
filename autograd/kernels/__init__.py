"""Kernels: fused operations in one pass over blocks, faster than a sequence of NumPy functions.

A kernel belongs to an array type, and `find` looks it up by the operands' type: the files of this package serve NumPy's
arrays, and those of the same names in `kernels.cuda` the arrays of a device with a runtime (`arrays.runtime`). Without
a kernel (for shape-only arrays, other dtypes, other devices) `find` returns None, and the operation runs the
composition of plain functions in its declaration. Recorded sweeps also run the composition, because kernels compute
first-order cotangents only.

A kernel is two functions:

    forward(xs, options, keep) -> (y, kept)       `kept` holds the residuals for backward; None unless `keep`
    backward(ct, kept, xs, options, wanted, last) -> the operands' cotangents, None where not wanted

Neither writes to its arguments, except that the `last` backward may overwrite `kept`. On the host they work with
``out=`` in blocks that stay in the cache. Code outside imports this package only, never a file of it. What is no pair
has a handle of its own: `functions`, the file for an array type (updates of optimizers, which work in place and on many
arrays; random numbers); `loop`, a compiled loop for arrays that are too small for a kernel; `compiled_loops`, for calls
of their machine code; `programs`, for a room that has a kernel of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from ..arrays import runtime_of
from ..arrays.half import HALF, rounded, widened
from .compiled import INT64, are_bare, compiled_loops, stands_for
from .compiled import find as loop
from .memory import keep_freed_memory
from .segments import sum_rows as sums_of_rows

__all__ = [
    "INT64", "Kernel", "are_bare", "compiled_loops", "find", "functions", "keep_freed_memory", "loop",
    "on_device", "programs", "stands_for", "sums_of_rows",
]  # fmt: skip


class Kernel(NamedTuple):
    """The two functions of one operation on one kind of array, and optionally which operands they take."""

    forward: Callable[[tuple[Any, ...], tuple[Any, ...], bool], tuple[Any, Any]]
    backward: Callable[[Any, Any, tuple[Any, ...], tuple[Any, ...], Sequence[bool], bool], Sequence[Any]]
    takes: Callable[[Sequence[Any]], bool] | None = None


_F32, _F64 = np.dtype(np.float32), np.dtype(np.float64)


class _Kernels(dict[tuple[type, str], "Kernel | None"]):
    """The kernels by array type and name. A file is imported when one of its kernels is first asked for."""

    def __missing__(self, key: tuple[type, str]) -> Kernel | None:
        kind, name = key
        file, _, operation = name.partition(".")
        kernel: Kernel | None = getattr(functions(file, kind), f"{operation}_kernel", None)
        self[key] = kernel
        return kernel


_KERNELS = _Kernels()


def find(name: str, xs: Sequence[Any]) -> Kernel | None:
    """The kernel of an operation for these arrays, or None. Its name is that of its file and its own: "norms.rms_norm".

    The arrays must have one type and one dtype: float32, float64, or one of 16 bits, which is computed in float32 and
    rounded once. Further arrays of integers or booleans (labels, masks) are allowed.
    """
    kind = xs[0].__class__
    kernel = _KERNELS[kind, name]
    if kernel is None:
        return None
    dtype = xs[0].dtype
    if dtype != _F32 and dtype != _F64:
        if dtype != HALF and dtype.name != "bfloat16":
            return None
        if kind is np.ndarray:
            kernel = _of_half(kernel, dtype)
    for x in xs[1:]:
        if x.__class__ is not kind or (x.dtype != dtype and x.dtype.kind not in "iub"):
            return None
    return kernel if kernel.takes is None or kernel.takes(xs) else None


def functions(name: str, kind: type) -> Any:
    """The file of kernels of this name for an array type, such as "adam".

    None for a device without a runtime, and where one of host and device has no such file.
    """
    is_host = kind is np.ndarray
    if not is_host and runtime_of(kind) is None:
        return None
    file = f"{__name__}.{name}" if is_host else f"{__name__}.cuda.{name}"
    try:
        return import_module(file)
    except ModuleNotFoundError as error:
        if error.name != file:
            raise
        return None


class _Files(dict[tuple[str, type], Any]):
    """The files of kernels for array types; to find one takes a microsecond. A device may be registered later."""

    def __missing__(self, key: tuple[str, type]) -> Any:
        found = functions(*key)
        if found is not None:
            self[key] = found
        return found


_FILES = _Files()


def on_device(name: str, x: Any) -> Any:
    """The file of kernels of this name for the array `x` of a device; None for what is no such array."""
    kind = x.__class__
    return None if kind is np.ndarray else _FILES[name, kind]


def programs() -> Any:
    """The file that makes programs of CUDA C++ and launches them, `cuda.program`. The host has no such file."""
    return import_module(f"{__name__}.cuda.program")


def _of_half(kernel: Kernel, dtype: Any) -> Kernel:
    """A kernel for float16 or bfloat16: the one for float32 on converted arrays, with rounded results."""

    def forward(xs: tuple[Any, ...], options: tuple[Any, ...], keep: bool) -> tuple[Any, Any]:
        y, kept = kernel.forward(tuple(map(widened, xs)), options, keep)
        return rounded(y, dtype), kept

    def backward(
        ct: Any, kept: Any, xs: tuple[Any, ...], options: tuple[Any, ...], wanted: Sequence[bool], last: bool
    ) -> Sequence[Any]:
        gs = kernel.backward(widened(ct), kept, tuple(map(widened, xs)), options, wanted, last)
        return [rounded(g, dtype) for g in gs]

    return Kernel(forward, backward)
