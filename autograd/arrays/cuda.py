"""NVIDIA GPUs through CuPy. This is the only file that imports CuPy."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from ..errors import DependencyError, call_site
from .runtime import Event, Memory, Program, Runtime, Stream

__all__ = ["CudaRuntime", "allow_tf32", "library", "runtime", "tf32_allowed", "why_not"]

_tf32 = os.environ.get("CUPY_TF32") == "1"  # the variable that CuPy itself reads
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


class CudaRuntime(Runtime):
    """CuPy's streams, memory and compiler. Kernels are compiled by NVRTC at first use, and CuPy caches them on disk."""

    name = "cuda"

    def __init__(self) -> None:
        self._cupy = library("a GPU")
        self._made: dict[tuple[str, str, int], Any] = {}
        self.set_precision()

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

    def set_precision(self) -> None:
        """Let CuPy's products of float32 have the precision that `allow_tf32` has set."""
        linalg = self._cupy._core._routines_linalg
        kind = linalg.COMPUTE_TYPE_TF32 if _tf32 else linalg.COMPUTE_TYPE_DEFAULT
        linalg.set_compute_type(np.float32, kind)

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


def _address(array: Any) -> int:
    """The address of an array's first byte, on the host or on the device."""
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)


@cache
def runtime() -> CudaRuntime:
    """The runtime of this process."""
    return CudaRuntime()


def allow_tf32(allowed: bool = True) -> None:
    """Let products of float32 on GPUs round their operands to TF32: matrix products, and those in attention.

    TF32 has the range of float32 and a fraction of 10 bits instead of 23: relative errors of products are about 1e-3
    instead of 1e-7, and tensor cores compute them several times as fast. Sums are float32. It is off unless a program
    asks for it, so that float32 means on a GPU what it means on the CPU. ``CUPY_TF32=1`` in the environment allows it
    from the start.

    Examples
    --------
    >>> from autograd.arrays import allow_tf32, tf32_allowed
    >>> allow_tf32(); tf32_allowed()
    True
    >>> allow_tf32(False)
    """
    global _tf32
    _tf32 = bool(allowed)
    if runtime.cache_info().currsize:
        runtime().set_precision()


def tf32_allowed() -> bool:
    """Whether products of float32 on GPUs may round their operands to TF32."""
    return _tf32
