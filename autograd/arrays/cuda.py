"""NVIDIA GPUs through CuPy. This is the only file that imports CuPy."""

from __future__ import annotations

import ctypes
import os
import re
import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from ..errors import DependencyError
from .cublas import WORKSPACE_BYTES, Cublas, takes
from .runtime import Event, Memory, Program, Runtime, Stream

__all__ = ["CudaRuntime", "allow_tf32", "facts", "library", "runtime", "tf32_allowed", "why_not"]

_SHARED_BYTES = 48 << 10  # a kernel that uses more shared memory, static and dynamic together, must ask for it
_MOST_READY = 8192  # prepared launches of a thread
_NULL = np.uintp(0)
_NEEDED = (14, 1)  # the CuPy that keeps compiled kernels on disk also where their names are given as expressions


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
        raise DependencyError(f"{use} needs CuPy: pip install 'ringtape[gpu]'") from error
    return cupy


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
    if tuple(map(int, re.findall(r"\d+", cupy.__version__)[:2])) < _NEEDED:
        needed = ".".join(map(str, _NEEDED))
        return f"CuPy {cupy.__version__} is installed; needed: {needed} or later (extra: gpu)"
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


class _Made:
    """A compiled kernel, and the dynamic shared memory with which it may be launched."""

    __slots__ = ("allowed_bytes", "function")

    def __init__(self, function: Any, allowed_bytes: int):
        self.function, self.allowed_bytes = function, allowed_bytes


class _Arguments:
    """A kernel's arguments in memory, as ``cuLaunchKernel`` takes them: a list of the address of each.

    Attributes
    ----------
    slots : list of ctypes.c_uint64
        The arguments that are addresses of arrays, which a launch sets.
    address : int
        Of the list.
    """

    __slots__ = ("_kept", "address", "slots")

    def __init__(self, arguments: Sequence[Any]):
        values: list[Any] = []
        for x in arguments:
            data = b"" if x is None else x.tobytes()
            values.append(ctypes.c_uint64() if x is None else (ctypes.c_char * len(data)).from_buffer_copy(data))
        pointers = (ctypes.c_void_p * max(len(values), 1))(*map(ctypes.addressof, values))
        self.slots = [value for value, x in zip(values, arguments, strict=True) if x is None]
        self._kept, self.address = (values, pointers), ctypes.addressof(pointers)


class CudaRuntime(Runtime):
    """CuPy's streams, memory and compiler. Kernels are compiled by NVRTC at first use, and CuPy caches them on disk."""

    name = "cuda"
    allows_tf32 = os.environ.get("CUPY_TF32") == "1"  # the variable that CuPy itself reads

    def __init__(self) -> None:
        self._cupy = library("a GPU")
        self._replays: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()  # with what they need
        self._local = threading.local()  # what belongs to a thread: its hook of allocations, and calls of cuBLAS
        self._made: dict[tuple[str, str, int], _Made] = {}
        self.set_precision()

    def _kernel(self, program: Program, kernel: str) -> _Made:
        device = self._cupy.cuda.runtime.getDevice()
        made = self._made.get((program.name, kernel, device))
        if made is None:
            module = self._cupy.RawModule(code=program.text, options=("--std=c++17",), name_expressions=[kernel])
            function = module.get_function(kernel)
            made = _Made(function, _SHARED_BYTES - function.shared_size_bytes)
            self._made[program.name, kernel, device] = made
        return made

    def launch(
        self, program: Program, kernel: str, grid: tuple[int, ...], block: tuple[int, ...], arguments: Sequence[Any],
        shared_bytes: int,
    ) -> None:  # fmt: skip
        made = self._kernel(program, kernel)
        if shared_bytes > made.allowed_bytes:
            made.function.max_dynamic_shared_size_bytes = made.allowed_bytes = shared_bytes
        # CuPy passes an array of one element by value, of any dtype
        given = tuple(np.asarray(x) if type(x) is np.void else x for x in arguments)
        made.function(grid, block, given, shared_mem=shared_bytes)

    def prepare(
        self, program: Program, kernel: str, grid: tuple[int, ...], block: tuple[int, ...], arguments: Sequence[Any],
        shared_bytes: int,
    ) -> Callable[[Sequence[Any]], None]:  # fmt: skip
        cuda, local, token = self._cupy.cuda, self._local, object()
        current, stream_of, call = cuda.runtime.getDevice, cuda.get_current_stream, cuda.driver.launchKernel
        sizes = *(*grid, 1, 1)[:3], *(*block, 1, 1)[:3], shared_bytes

        def launch(given: Sequence[Any]) -> None:
            try:
                function, ready = local.ready[token, current()]
            except (AttributeError, KeyError):
                start(given)
                return
            for slot, x in zip(ready.slots, given, strict=True):
                slot.value = 0 if x is None else x.data.ptr
            call(function, *sizes, stream_of().ptr, ready.address, 0)

        def start(given: Sequence[Any]) -> None:
            """The first launch of a thread on a device: CuPy compiles the kernel, and binds the thread to it."""
            left = iter(given)
            whole = [x if x is not None else _NULL if (own := next(left)) is None else own for x in arguments]
            self.launch(program, kernel, grid, block, whole, shared_bytes)
            ready = local.__dict__.setdefault("ready", {})
            if len(ready) >= _MOST_READY:
                ready.clear()
            ready[token, current()] = self._kernel(program, kernel).function.kernel.ptr, _Arguments(arguments)

        return launch

    def address(self, array: Any) -> int:
        return int(array.data.ptr)

    def set_precision(self) -> None:
        """Let CuPy's products of float32 have the precision that `allow_tf32` has set."""
        linalg = self._cupy._core._routines_linalg
        kind = linalg.COMPUTE_TYPE_TF32 if self.allows_tf32 else linalg.COMPUTE_TYPE_DEFAULT
        linalg.set_compute_type(np.float32, kind)

    def current_stream(self) -> Stream:
        return self._cupy.cuda.get_current_stream()

    def new_stream(self) -> Stream:
        return self._cupy.cuda.Stream(non_blocking=True)

    def new_event(self) -> Event:
        return self._cupy.cuda.Event(disable_timing=True)

    def on_this_device(self, function: Callable[[], None]) -> Callable[[], None]:
        device = self._cupy.cuda.Device()  # the current one

        def run() -> None:
            with device:
                function()

        return run

    @property
    def most_shared_bytes(self) -> int:
        return _most_shared_bytes(self._cupy.cuda.runtime.getDevice())

    def pinned(self, size_bytes: int) -> np.ndarray:
        memory = self._cupy.cuda.alloc_pinned_memory(max(size_bytes, 1))
        return np.frombuffer(memory, np.uint8, size_bytes)

    def copy(self, out: Any, x: Any, stream: Any) -> None:
        cuda = self._cupy.cuda.runtime
        cuda.memcpyAsync(_address(out), _address(x), x.nbytes, cuda.memcpyDefault, stream.ptr)

    def capture(self, function: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        cuda = self._cupy.cuda
        # Memory that is given back during the capture may be used again by the work that follows in it, but not by
        # anybody else, as long as the graph exists.
        pool = cuda.MemoryPool()
        cuda.get_current_stream().synchronize()
        stream = cuda.Stream(non_blocking=True)
        with stream, cuda.using_allocator(pool.malloc):
            workspace = self._cupy.empty(WORKSPACE_BYTES, np.uint8)  # that of the handle is shared with other streams
            cublas = self._cublas()
            stream.begin_capture()
            try:
                if cublas is not None:
                    cublas.use(stream, workspace)
                self._local.is_capturing = True
                result = function()
            except BaseException:
                try:
                    stream.end_capture()
                except cuda.runtime.CUDARuntimeError:  # what was refused has ended the capture
                    pass
                raise
            finally:
                self._local.is_capturing = False
            graph = stream.end_capture()

        def replay() -> None:
            graph.launch()  # on the current stream

        self._replays[replay] = pool, stream, workspace
        return result, replay

    def matmul(self, a: Any, b: Any) -> Any:
        is_capturing = getattr(self._local, "is_capturing", False)
        if not is_capturing:
            if a.ndim < 3 and b.ndim < 3:
                return a @ b
            if b.ndim == 2 and a.flags.c_contiguous:  # one product of two matrices
                return (a.reshape(-1, a.shape[-1]) @ b).reshape(*a.shape[:-1], b.shape[-1])
        cublas = self._cublas() if takes(a, b) else None
        if cublas is None:
            return a @ b
        if not is_capturing:
            cublas.use(self._cupy.cuda.get_current_stream())
        return cublas.matmul(a, b)

    def _cublas(self) -> Cublas | None:
        """The calls of cuBLAS of this thread on the current device; None if the library is not found."""
        known = self._local.__dict__.setdefault("cublas", {})
        device = self._cupy.cuda.runtime.getDevice()
        if device not in known:
            try:
                known[device] = Cublas(self._cupy)
            except OSError:
                known[device] = None
        found: Cublas | None = known[device]
        return found

    def special(self) -> Any:
        import cupyx.scipy.special

        return cupyx.scipy.special

    def memory(self) -> Memory:
        free, total = self._cupy.cuda.runtime.memGetInfo()
        pool = self._cupy.get_default_memory_pool()
        captured = sum(pool.total_bytes() for pool, _, _ in self._replays.values())
        watch = getattr(self._local, "watch", None)
        peak = pool.total_bytes() if watch is None else max(watch.peak_bytes, pool.used_bytes())
        return Memory(pool.used_bytes() + captured, peak + captured, free, total, pool.free_bytes())

    def reset_peak(self) -> None:
        # CuPy's pool has no peak. A hook of its allocations costs about a microsecond for each array, so there is none
        # until this function is called.
        watch = getattr(self._local, "watch", None)
        if watch is None:
            watch = self._local.watch = _watch(self._cupy)
            watch.__enter__()  # hooks belong to a thread
        watch.peak_bytes = self._cupy.get_default_memory_pool().used_bytes()

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


def _watch(cupy: Any) -> Any:
    """A hook that keeps the largest number of bytes that arrays have had."""

    class Watch(cupy.cuda.MemoryHook):
        name = "ringtape peak"
        peak_bytes = 0

        def __init__(self) -> None:
            self._used_bytes = cupy.get_default_memory_pool().used_bytes

        def malloc_postprocess(self, **_: Any) -> None:
            used = self._used_bytes()
            if used > self.peak_bytes:
                self.peak_bytes = used

    return Watch()


@cache  # of devices; without it each launch asks the driver
def _most_shared_bytes(device: int) -> int:
    found = library("a GPU").cuda.runtime
    return int(found.deviceGetAttribute(found.cudaDevAttrMaxSharedMemoryPerBlockOptin, device))


def _address(array: Any) -> int:
    """The address of an array's first byte, on the host or on the device."""
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)


@cache  # one entry: the runtime owns what it has compiled
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
    CudaRuntime.allows_tf32 = bool(allowed)
    if runtime.cache_info().currsize:
        runtime().set_precision()


def tf32_allowed() -> bool:
    """Whether products of float32 on GPUs may round their operands to TF32."""
    return CudaRuntime.allows_tf32
