"""The interface of CuPy and NCCL that the packages use, as the installed version states it in its docstrings.

`fake_nccl` checks its arguments against these signatures, and `test_cupy_interface` compares them with an installed
CuPy, which needs no GPU, and with the names that the source uses.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import wraps
from typing import Any

NCCL = {
    "NcclCommunicator": "(int ndev, bytes commId, int rank, NcclConfig config=None)",
    "NcclCommunicator.abort": "(self)",
    "NcclCommunicator.allGather":
        "(self, intptr_t sendbuf, intptr_t recvbuf, size_t count, int datatype, intptr_t stream)",
    "NcclCommunicator.allReduce":
        "(self, intptr_t sendbuf, intptr_t recvbuf, size_t count, int datatype, int op, intptr_t stream)",
    "NcclCommunicator.broadcast":
        "(self, intptr_t sendbuff, intptr_t recvbuff, size_t count, int datatype, int root, intptr_t stream)",
    "NcclCommunicator.check_async_error": "(self)",
    "NcclCommunicator.destroy": "(self)",
    "NcclCommunicator.recv": "(self, intptr_t recvbuf, size_t count, int datatype, int peer, intptr_t stream)",
    "NcclCommunicator.reduce":
        "(self, intptr_t sendbuf, intptr_t recvbuf, size_t count, int datatype, int op, int root, intptr_t stream)",
    "NcclCommunicator.reduceScatter":
        "(self, intptr_t sendbuf, intptr_t recvbuf, size_t recvcount, int datatype, int op, intptr_t stream)",
    "NcclCommunicator.send": "(self, intptr_t sendbuf, size_t count, int datatype, int peer, intptr_t stream)",
    "NcclError": "(status)",
    "get_unique_id": "()",
    "get_version": "()",
    "groupEnd": "()",
    "groupStart": "()",
}  # fmt: skip
"""The functions of ``cupy.cuda.nccl``."""

NCCL_RETURNS = {"get_unique_id": bytes, "get_version": int}
"""The types of what they return."""

CUPY = {
    "RawModule": "RawModule(str code=None, *, str path=None, tuple options=(), str backend='nvrtc', "
                 "bool translate_cucomplex=False, bool enable_cooperative_groups=False, name_expressions=None, "
                 "jitify=None)",
    "RawModule.get_function": "(self, str name)",
    "RawKernel.__call__": "(self, grid, block, args, **kwargs)",
    "RawKernel.kernel": None,
    "RawKernel.max_dynamic_shared_size_bytes": None,
    "RawKernel.shared_size_bytes": None,
    "__version__": None,
    "_core._routines_linalg.COMPUTE_TYPE_DEFAULT": None,
    "_core._routines_linalg.COMPUTE_TYPE_TF32": None,
    "_core._routines_linalg.get_compute_type": "(dtype)",
    "_core._routines_linalg.set_compute_type": "(dtype, compute_type)",
    "asarray": "(a, dtype=None, order=None, *, copy=None, blocking=False)",
    "asnumpy": "(a, stream=None, order='C', out=None, *, blocking=True)",
    "cuda.Device": "(device=None)",
    "cuda.Event": "(block=False, disable_timing=False, interprocess=False)",
    "cuda.Event.done": None,
    "cuda.Event.record": "(self, stream=None)",
    "cuda.Event.synchronize": "(self)",
    "cuda.Function.ptr": None,
    "cuda.Graph.launch": "(self, stream=None)",
    "cuda.Memory": "(size_t size)",
    "cuda.MemoryHook": "()",
    "cuda.MemoryPointer": "(BaseMemory mem, ptrdiff_t offset)",
    "cuda.MemoryPool": "(allocator=None)",
    "cuda.MemoryPool.free_bytes": "(self)",
    "cuda.MemoryPool.malloc": "(self, size_t size)",
    "cuda.MemoryPool.total_bytes": "(self)",
    "cuda.MemoryPool.used_bytes": "(self)",
    "cuda.Stream": "(null=False, non_blocking=False, ptds=False, priority=None)",
    "cuda.Stream.begin_capture": "(self, mode=None)",
    "cuda.Stream.end_capture": "(self)",
    "cuda.Stream.synchronize": "(self)",
    "cuda.Stream.wait_event": "(self, event)",
    "cuda.UnownedMemory": "(intptr_t ptr, size_t size, owner, int device_id=-1)",
    "cuda.alloc_pinned_memory": "(size_t size)",
    "cuda.device.get_cublas_handle": "()",
    "cuda.driver.launchKernel":
        "(intptr_t f, unsigned int grid_dim_x, unsigned int grid_dim_y, unsigned int grid_dim_z, "
        "unsigned int block_dim_x, unsigned int block_dim_y, unsigned int block_dim_z, unsigned int shared_mem_bytes, "
        "intptr_t stream, intptr_t kernel_params, intptr_t extra)",
    "cuda.get_current_stream": "(int device_id=-1)",
    "cuda.runtime.CUDARuntimeError": "(status)",
    "cuda.runtime.cudaDevAttrMaxSharedMemoryPerBlockOptin": None,
    "cuda.runtime.deviceGetAttribute": "(int attrib, int device)",
    "cuda.runtime.deviceGetPCIBusId": "(int device)",
    "cuda.runtime.driverGetVersion": "()",
    "cuda.runtime.getDevice": "()",
    "cuda.runtime.getDeviceCount": "()",
    "cuda.runtime.getDeviceProperties": "(int device)",
    "cuda.runtime.ipcCloseMemHandle": "(intptr_t devPtr)",
    "cuda.runtime.ipcGetMemHandle": "(intptr_t devPtr)",
    "cuda.runtime.ipcOpenMemHandle": "(bytes handle, unsigned int flags=cudaIpcMemLazyEnablePeerAccess)",
    "cuda.runtime.memGetInfo": "()",
    "cuda.runtime.memcpyAsync": "(intptr_t dst, intptr_t src, size_t size, int kind, intptr_t stream)",
    "cuda.runtime.memcpyDefault": None,
    "cuda.runtime.runtimeGetVersion": "()",
    "cuda.runtime.setDevice": "(int device)",
    "cuda.using_allocator": "(allocator=None)",
    "empty": "(shape: '_ShapeLike', dtype: 'DTypeLike' = <class 'float'>, order: '_OrderCF' = 'C')",
    "get_default_memory_pool": "()",
    "ndarray": "(*args, _obj=None, _no_init=False, **kwargs)",
}  # fmt: skip
"""The names of ``cupy``; None for what is no function. `Event` and `Stream` are the runtime's protocols."""


def stated(thing: Any) -> str:
    """The parameters of a function or class of CuPy: those of the first line of its docstring, or of Python."""
    line = next((line for line in (thing.__doc__ or "").splitlines() if re.match(r"\w[\w.]*\(.*\)", line)), None)
    text = str(inspect.signature(thing)) if line is None else line[line.index("(") :]
    return text.rpartition(" -> ")[0] or text


_TYPES = {"int": int, "intptr_t": int, "size_t": int, "bytes": bytes}


def typed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the fake that takes what CuPy's function of this name takes, and raises TypeError for the rest."""
    words = [each.split("=")[0].split() for each in NCCL[name].strip("()").split(", ") if each]
    kinds = [_TYPES.get(each[0]) if len(each) > 1 else None for each in words if each != ["self"]]
    needed = sum("=" not in each for each in NCCL[name].strip("()").split(", ") if each and each != "self")

    @wraps(function)
    def check(self: Any, *given: Any) -> Any:
        if not needed <= len(given) <= len(kinds):
            raise TypeError(f"{name}{NCCL[name]} got {len(given)} arguments")
        for x, kind in zip(given, kinds, strict=False):
            if kind is not None and (not isinstance(x, kind) or isinstance(x, bool)):
                raise TypeError(f"{name}{NCCL[name]} got {type(x).__name__} {x!r:.40}")
        return function(self, *given)

    return check
