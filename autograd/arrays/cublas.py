"""Matrix products by cuBLAS where CuPy's are refused or slow.

CuPy refuses to call cuBLAS while a stream captures. It computes products of more than two dimensions of float16 in
float32, those of bfloat16 without tensor cores, and copies transposed operands.

cuBLAS takes matrices by columns. A matrix by rows is its transpose by columns, so that ``y = a b`` by rows is computed
as ``y.T = b.T a.T`` by columns, with no copy.
"""

from __future__ import annotations

import ctypes
from math import prod
from typing import Any, NamedTuple

import numpy as np

__all__ = ["WORKSPACE_BYTES", "Cublas", "Operand", "operand", "takes"]

_DATA_TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}  # cudaDataType: CUDA_R_32F, ...
_COMPUTE_32F, _COMPUTE_TF32, _COMPUTE_64F = 68, 77, 70  # cublasComputeType_t
_DEFAULT_ALGORITHM = -1
WORKSPACE_BYTES = 32 << 20  # what cuBLAS recommends for a GPU of compute capability 9


class Operand(NamedTuple):
    """Matrices [..., rows, columns] as cuBLAS takes them.

    Attributes
    ----------
    array : array
        The matrices, or a copy of them.
    is_transposed : bool
        Whether columns, not rows, are contiguous.
    leading, stride : int
        The elements from one row (or column) to the next, and from one matrix to the next; 0 for one matrix.
    """

    array: Any
    is_transposed: bool
    leading: int
    stride: int


def operand(x: Any, batch: tuple[int, ...]) -> Operand:
    """Matrices for products of the batch dimensions `batch`, which `x` has or is broadcast to. Copied if necessary.

    Examples
    --------
    >>> import numpy
    >>> operand(numpy.zeros((5, 4, 3)).swapaxes(1, 2), (5,))[1:]
    (True, 3, 12)
    """
    rows, columns = x.shape[-2:]
    down, right = (n // x.itemsize for n in x.strides[-2:])
    stride = _stride(x, batch)
    if stride is not None:
        if (columns == 1 or right == 1) and (rows == 1 or down >= columns):
            return Operand(x, False, down if rows > 1 else columns, stride)
        if (rows == 1 or down == 1) and (columns == 1 or right >= rows):
            return Operand(x, True, right if columns > 1 else rows, stride)
    is_one = prod(x.shape[:-2]) == 1
    x = x.copy() if is_one or x.shape[:-2] == batch else np.broadcast_to(x, (*batch, rows, columns)).copy()
    return Operand(x, False, columns, 0 if is_one else rows * columns)


def _stride(x: Any, batch: tuple[int, ...]) -> int | None:
    """The elements from one matrix to the next; None if they are not evenly spaced."""
    if prod(x.shape[:-2]) == 1:
        return 0
    if x.shape[:-2] != batch:
        return None
    found: int | None = None
    count = 1
    for n, stride in zip(reversed(batch), reversed(x.strides[:-2]), strict=True):
        if n == 1:
            continue
        if found is None:
            found = stride // x.itemsize
        elif stride != found * count * x.itemsize:
            return None
        count *= n
    return found


def takes(a: Any, b: Any) -> bool:
    """Whether cuBLAS computes the product of two arrays, both on one device."""
    is_one_kind = type(a) is type(b) and a.dtype == b.dtype and a.device == b.device
    return is_one_kind and a.dtype.name in _DATA_TYPES and a.ndim > 0 < b.ndim


class Cublas:
    """Calls of cuBLAS with a handle of CuPy's, which belongs to a thread and a device.

    Parameters
    ----------
    cupy : module

    Raises
    ------
    OSError
        The library is not found.
    """

    def __init__(self, cupy: Any):
        self._cupy = cupy
        major = cupy.cuda.runtime.runtimeGetVersion() // 1000
        self._handle = ctypes.c_void_p(cupy.cuda.device.get_cublas_handle())  # it has loaded the library
        self._library = ctypes.CDLL(f"libcublas.so.{major}")

    def use(self, stream: Any, workspace: Any = None) -> None:
        """Use a stream for the next calls, and a workspace in the place of the handle's.

        A call of CuPy's sets its own stream again.
        """
        library, handle = self._library, self._handle
        self._require(library.cublasSetStream_v2(handle, ctypes.c_void_p(stream.ptr)))
        if workspace is not None:
            memory, size = ctypes.c_void_p(workspace.data.ptr), ctypes.c_size_t(workspace.nbytes)
            self._require(library.cublasSetWorkspace_v2(handle, memory, size))

    def matmul(self, a: Any, b: Any) -> Any:
        """``a @ b`` of arrays of one dtype."""
        if a.ndim == 1:
            return self.matmul(a[None], b)[..., 0, :]
        if b.ndim == 1:
            return self.matmul(a, b[:, None])[..., 0]
        if b.ndim == 2 and a.ndim > 2 and a.flags.c_contiguous:  # one product, not one per batch
            return self.matmul(a.reshape(-1, a.shape[-1]), b).reshape(*a.shape[:-1], b.shape[-1])
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        (m, k), n = a.shape[-2:], b.shape[-1]
        if b.shape[-2] != k:
            raise ValueError(f"matmul of {a.shape} and {b.shape}: {k} columns and {b.shape[-2]} rows")
        out = np.empty_like(a, shape=(*batch, m, n), order="C")
        if not k:
            out[...] = 0
        if not k or not out.size:
            return out
        left, right = operand(a, batch), operand(b, batch)
        kind = _DATA_TYPES[a.dtype.name]
        number: Any = ctypes.c_double if a.dtype.name == "float64" else ctypes.c_float
        compute = _COMPUTE_64F if a.dtype.name == "float64" else _COMPUTE_32F
        set_in_cupy = self._cupy._core._routines_linalg
        if a.dtype.name == "float32" and set_in_cupy.get_compute_type(a.dtype) == set_in_cupy.COMPUTE_TYPE_TF32:
            compute = _COMPUTE_TF32
        integer, long, address = ctypes.c_int, ctypes.c_longlong, ctypes.c_void_p

        def given(x: Operand) -> tuple[Any, ...]:
            return address(x.array.data.ptr), integer(kind), integer(x.leading), long(x.stride)

        self._require(self._library.cublasGemmStridedBatchedEx(
            self._handle, integer(right.is_transposed), integer(left.is_transposed), integer(n), integer(m), integer(k),
            ctypes.byref(number(1)), *given(right), *given(left), ctypes.byref(number(0)),
            address(out.data.ptr), integer(kind), integer(n), long(m * n), integer(prod(batch)), integer(compute),
            integer(_DEFAULT_ALGORITHM),
        ))  # fmt: skip
        return out

    @staticmethod
    def _require(status: int) -> None:
        if status:
            raise RuntimeError(f"cuBLAS returned the status {status}")
