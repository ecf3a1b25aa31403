"""NVIDIA GPUs through CuPy. This is the only file that imports CuPy."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from ..errors import DependencyError, call_site
from .runtime import Event, Memory, Program, Runtime, Stream

__all__ = ["CudaRuntime", "facts", "library", "runtime", "why_not"]

_STATIC_SHARED_BYTES = 48 << 10  # a kernel that uses more dynamic shared memory must ask for it


def library(use: str) -> Any:
    """The module `cupy`.

    Raises
    ------
    DependencyError
        CuPy is not installed. `use` is what needs it.
    """
    try:
        import cupy
    except ImportError as error:
        raise DependencyError(f"{use} needs CuPy: pip install 'ringtape[gpu]'" + call_site()) from error
    return cupy


@cache
def why_not() -> str:
    """The reason why no GPU can be used, or an empty string.

    Examples
    --------
    >>> from autograd.arrays import cuda
    >>> cuda.why_not() == "" or "CuPy" in cuda.why_not()
    True
    """
    try:
        import cupy
    except ImportError:
        return "CuPy is not installed (extra: gpu)"
    try:
        return "" if cupy.cuda.runtime.getDeviceCount() else "CuPy finds no GPU"
    except cupy.cuda.runtime.CUDARuntimeError as error:  # without a driver, or with one that is too old
        return f"CuPy finds no GPU: {error}"


def facts() -> dict[str, str]:
    """The GPU, its memory, the driver's version of CUDA, and CuPy's version, for reports. Needs a GPU."""
    cupy = library("a report of the GPU")
    cuda = cupy.cuda.runtime
    count = cuda.getDeviceCount()
    name = cuda.getDeviceProperties(cuda.getDevice())["name"].decode()
    free, total = cuda.memGetInfo()
    driver = cuda.driverGetVersion()
    return {
        "GPU": f"{count} x {name}" if count > 1 else name,
        "driver": f"CUDA {driver // 1000}.{driver % 1000 // 10}",
        "CuPy": cupy.__version__,
        "memory": f"{free / 2**30:.1f} GiB free of {total / 2**30:.1f} GiB",
    }


class CudaRuntime(Runtime):
    """CuPy's streams, memory and compiler. Kernels are compiled by NVRTC at first use, and CuPy caches them on disk."""

    name = "cuda"

    def __init__(self) -> None:
        self._cupy = library("a GPU")
        self._made: dict[tuple[str, str, int], Any] = {}

    def _kernel(self, program: Program, kernel: str) -> Any:
        device = self._cupy.cuda.runtime.getDevice()
        made = self._made.get((program.name, kernel, device))
        if made is None:
            module = self._cupy.RawModule(code=program.text, options=("--std=c++17",), name_expressions=[kernel])
            made = self._made[program.name, kernel, device] = module.get_function(kernel)
        return made

    def launch(
        self, program: Program, kernel: str, grid: tuple[int, ...], block: tuple[int, ...], arguments: Sequence[Any],
        shared_bytes: int,
    ) -> None:  # fmt: skip
        made = self._kernel(program, kernel)
        if shared_bytes > _STATIC_SHARED_BYTES and made.max_dynamic_shared_size_bytes < shared_bytes:
            made.max_dynamic_shared_size_bytes = shared_bytes
        made(grid, block, tuple(arguments), shared_mem=shared_bytes)

    def address(self, array: Any) -> int:
        return int(array.data.ptr)

    def current_stream(self) -> Stream:
        return self._cupy.cuda.get_current_stream()

    def new_stream(self) -> Stream:
        return self._cupy.cuda.Stream(non_blocking=True)

    def new_event(self) -> Event:
        return self._cupy.cuda.Event(disable_timing=True)

    def pinned(self, size_bytes: int) -> np.ndarray:
        memory = self._cupy.cuda.alloc_pinned_memory(max(size_bytes, 1))
        return np.frombuffer(memory, np.uint8, size_bytes)

    def copy(self, out: Any, x: Any, stream: Any) -> None:
        cuda = self._cupy.cuda.runtime
        cuda.memcpyAsync(_address(out), _address(x), x.nbytes, cuda.memcpyDefault, stream.ptr)

    def memory(self) -> Memory:
        free, total = self._cupy.cuda.runtime.memGetInfo()
        used = self._cupy.get_default_memory_pool().used_bytes()
        return Memory(used, used, free, total)

    def device_id(self) -> str:
        cuda = self._cupy.cuda.runtime
        return str(cuda.deviceGetPCIBusId(cuda.getDevice()))

    def nccl(self) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # CuPy warns where there is no library
            from cupy.cuda import nccl
        return nccl if nccl.available else None

    def exportable(self, size_bytes: int) -> Any:
        cuda = self._cupy.cuda
        memory = cuda.Memory(max(size_bytes, 1))  # of cudaMalloc: a handle names a whole allocation, not a pool's part
        return self._cupy.ndarray(size_bytes, np.uint8, cuda.MemoryPointer(memory, 0))

    def export_handle(self, array: Any) -> bytes:
        return bytes(self._cupy.cuda.runtime.ipcGetMemHandle(array.data.ptr))

    def open_handle(self, handle: bytes, size_bytes: int) -> Any:
        cuda = self._cupy.cuda
        address = cuda.runtime.ipcOpenMemHandle(handle)
        memory = cuda.UnownedMemory(address, size_bytes, None, cuda.runtime.getDevice())
        return self._cupy.ndarray(size_bytes, np.uint8, cuda.MemoryPointer(memory, 0))

    def close_handle(self, array: Any) -> None:
        self._cupy.cuda.runtime.ipcCloseMemHandle(array.data.ptr)


def _address(array: Any) -> int:
    """The address of an array's first byte, on the host or on the device."""
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)


@cache
def runtime() -> CudaRuntime:
    """The runtime of this process."""
    return CudaRuntime()
