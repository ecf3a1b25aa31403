"""Count what NumPy allocates for arrays, by a memory handler of its C interface (NEP 49)."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy

_SET, _GET = 304, 305  # the places of PyDataMem_SetHandler and PyDataMem_GetHandler in NumPy's table of functions
_P, _N = ctypes.c_void_p, ctypes.c_size_t
_Malloc, _Calloc = ctypes.CFUNCTYPE(_P, _P, _N), ctypes.CFUNCTYPE(_P, _P, _N, _N)


class _Handler(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char * 127), ("version", ctypes.c_uint8), ("context", _P), ("malloc", _P), ("calloc", _P),
        ("realloc", _P), ("free", _P),
    )  # fmt: skip


class Count:
    """The number of arrays that were allocated, and their bytes."""

    def __init__(self) -> None:
        self.arrays = self.bytes = 0

    def add(self, size: int) -> None:
        self.arrays, self.bytes = self.arrays + 1, self.bytes + size


@contextmanager
def counted() -> Iterator[Count]:
    """Count the allocations of this thread."""
    python, count = ctypes.pythonapi, Count()
    python.PyCapsule_New.restype = ctypes.py_object
    python.PyCapsule_New.argtypes = [_P, ctypes.c_char_p, _P]
    python.PyCapsule_GetPointer.restype = _P
    python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    table = ctypes.cast(python.PyCapsule_GetPointer(numpy._core._multiarray_umath._ARRAY_API, None),
                        ctypes.POINTER(_P))  # fmt: skip
    usual = _Handler.from_address(
        python.PyCapsule_GetPointer(ctypes.PYFUNCTYPE(ctypes.py_object)(table[_GET])(), b"mem_handler")
    )
    # NumPy's own functions, which may release the lock of Python and so need it
    malloc = ctypes.PYFUNCTYPE(_P, _P, _N)(usual.malloc)
    calloc = ctypes.PYFUNCTYPE(_P, _P, _N, _N)(usual.calloc)

    def counting_malloc(context: Any, size: int) -> Any:
        count.add(size)
        return malloc(context, size)

    def counting_calloc(context: Any, n: int, size: int) -> Any:
        count.add(n * size)
        return calloc(context, n, size)

    calls = _Malloc(counting_malloc), _Calloc(counting_calloc)
    handler = _Handler(b"counted", 1, usual.context, *(ctypes.cast(each, _P) for each in calls), usual.realloc,
                       usual.free)  # fmt: skip
    python.Py_IncRef(ctypes.py_object(handler))  # an array is freed by the handler that was set when it was made
    capsule = python.PyCapsule_New(ctypes.addressof(handler), b"mem_handler", None)
    set_handler = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(table[_SET])
    before = set_handler(capsule)
    try:
        yield count
    finally:
        set_handler(before)
