"""Tries what may carry device arrays, in a process that may hang or die: see `collectives.transports.device.probe`.

Run as a program, it prints a line of JSON for each finding: ``python -m collectives.tools.device_facts``. With a handle
as its argument it opens memory of the process that made the handle.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from autograd.arrays import cuda

from ..transports.device.probe import LIMIT_S, MARK, PROGRAM, ended
from .mpi_facts import is_gpu_aware

__all__: list[str] = []

_COUNT = 1 << 16


def _tell(kind: str, name: str, text: str) -> None:
    print(MARK + json.dumps([kind, name, text]), flush=True)


def _tried(name: str, test: Callable[[], str]) -> None:
    try:
        problem = test()
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    _tell("works", name, problem.splitlines()[0] if problem else "")


def _values() -> Any:
    return np.arange(_COUNT, dtype=np.uint8)


def _read(runtime: Any, array: Any) -> Any:
    """The bytes of a device array."""
    host, stream = runtime.pinned(array.nbytes), runtime.new_stream()
    runtime.copy(host, array, stream)
    stream.synchronize()
    return host


def _written(runtime: Any) -> Any:
    """A device array of its own allocation, with values."""
    array, host, stream = runtime.exportable(_COUNT), runtime.pinned(_COUNT), runtime.new_stream()
    host[...] = _values()
    runtime.copy(array, host, stream)
    stream.synchronize()
    return array


def _ipc() -> str:
    """Let another process open memory of this one."""
    runtime = cuda.runtime()
    array = _written(runtime)
    command = [sys.executable, "-P", "-m", PROGRAM, runtime.export_handle(array).hex()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode:
        return ended(done.returncode, done.stderr).replace("the probe", "the process that opened a handle")
    return ""


def _open(handle: str) -> None:
    runtime = cuda.runtime()
    array = runtime.open_handle(bytes.fromhex(handle), _COUNT)
    right = np.array_equal(_read(runtime, array), _values())
    runtime.close_handle(array)
    if not right:
        raise SystemExit("it read other values")


def _nccl() -> str:
    """A sum over one rank: whether the library is there and runs on this GPU."""
    runtime = cuda.runtime()
    library = runtime.nccl()
    if library is None:
        return "CuPy finds no NCCL library (pip install nvidia-nccl-cu12)"
    _tell("fact", "NCCL", str(library.get_version()))
    stream: Any = runtime.new_stream()
    x, y = _written(runtime), runtime.exportable(_COUNT)
    comm = library.NcclCommunicator(1, library.get_unique_id(), 0)
    comm.allReduce(runtime.address(x), runtime.address(y), _COUNT, library.NCCL_UINT8, library.NCCL_SUM, stream.ptr)
    stream.synchronize()
    comm.destroy()
    return "" if np.array_equal(_read(runtime, y), _values()) else "a sum over one rank is wrong"


def _mpi() -> str:
    """Whether the MPI library says that it takes device memory, and does."""
    from mpi4py import MPI

    try:
        reports = is_gpu_aware(MPI)
    except LookupError as error:
        return str(error)
    if not reports:
        return "the MPI library reports that it takes no device memory"
    runtime = cuda.runtime()
    x, y, total = _written(runtime), runtime.exportable(_COUNT), runtime.exportable(_COUNT)
    MPI.COMM_SELF.Sendrecv((x, MPI.BYTE), 0, 0, (y, MPI.BYTE), 0, 0)
    MPI.COMM_SELF.Allreduce((x, MPI.UNSIGNED_CHAR), (total, MPI.UNSIGNED_CHAR), MPI.SUM)
    right = [np.array_equal(_read(runtime, each), _values()) for each in (y, total)]
    return "" if all(right) else "a message of device memory arrived wrong"


def _main() -> None:
    if sys.argv[1:]:
        _open(sys.argv[1])
        return
    for name, text in cuda.facts().items():
        _tell("fact", name, text)
    _tried("ipc", _ipc)
    _tried("nccl", _nccl)
    _tried("mpi", _mpi)


if __name__ == "__main__":
    _main()
