"""Sorts for CuPy in the place of Thrust's, on memory of the host. Installed as `cupy.cuda.thrust`."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

available = True


def get_build_version() -> int:
    """That of the Thrust in this wheel of CuPy."""
    return 300000


def _array(address: int, dtype: Any, shape: tuple[int, ...]) -> np.ndarray:
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    if not size:
        return np.empty(shape, dtype)
    return np.frombuffer((ctypes.c_char * size).from_address(address), dtype).reshape(shape)


def _finish() -> None:
    """Do the work before the sort, which does not wait in a queue."""
    import cupy

    cupy.cuda.get_current_stream().synchronize()


def sort(dtype: Any, data: int, keys: int, shape: tuple[int, ...]) -> None:
    _finish()
    values = _array(data, dtype, shape)
    values[...] = np.sort(values, axis=-1, kind="stable")


def argsort(dtype: Any, index: int, data: int, keys: int, shape: tuple[int, ...]) -> None:
    _finish()
    values = _array(data, dtype, shape)
    order = np.argsort(values, axis=-1, kind="stable")
    _array(index, np.intp, shape)[...] = order
    values[...] = np.take_along_axis(values, order, -1)


def lexsort(dtype: Any, index: int, keys: int, count: int, n: int) -> None:
    _finish()
    _array(index, np.intp, (n,))[...] = np.lexsort(_array(keys, dtype, (count, n)))
