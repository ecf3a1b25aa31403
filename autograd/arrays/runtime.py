"""The runtime of a device: kernels from source text, streams, events and page-locked memory.

Operations need no runtime: they call NumPy's functions, which pass a device's arrays to its library. Fused kernels,
staging and the report of memory use the runtime of an array's type, `runtime_of`. `arrays.cuda` implements it with
CuPy. The tests implement it on the CPU.

Streams and events have the methods that CuPy's have, so that CuPy's are used as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import numpy as np

__all__ = ["Event", "Memory", "Program", "Runtime", "Stream"]


class Program(NamedTuple):
    """CUDA C++ source and the kernels that are made of it.

    Attributes
    ----------
    name : str
        The name in error messages.
    text : str
        The whole source. It includes nothing.
    kernels : tuple of str
        All kernels that may be launched, as C++ expressions such as ``softmax<float, 4>``.
    """

    name: str
    text: str
    kernels: tuple[str, ...]


class Memory(NamedTuple):
    """Bytes of device memory.

    Attributes
    ----------
    used_bytes, peak_bytes : int
        Held by arrays of this process, now and at most; see `Runtime.reset_peak`.
    free_bytes, total_bytes : int
        Of the device: free for all processes, and in all.
    pooled_bytes : int
        Taken from the device by this process and not held by arrays, for its next ones.
    """

    used_bytes: int
    peak_bytes: int
    free_bytes: int
    total_bytes: int
    pooled_bytes: int = 0


class Event(Protocol):
    """A place in the work of a stream."""

    @property
    def done(self) -> bool:
        """Whether the work before it is complete. Does not wait."""

    def record(self, stream: Any = None, /) -> None:
        """Put it after the work that the stream was given so far."""

    def synchronize(self) -> None:
        """Wait on the host until the work before it is complete."""


class Stream(AbstractContextManager[Any], Protocol):
    """A queue of work on the device. In a ``with`` block it is the current one."""

    def wait_event(self, event: Any, /) -> None:
        """Let the work that follows wait for the event, on the device."""

    def synchronize(self) -> None:
        """Wait on the host until all its work is complete."""


class Runtime(Protocol):
    """The calls of a device's library that kernels, staging and reports need."""

    name: str
    """The device in names such as ``cuda:0``."""

    @property
    def most_shared_bytes(self) -> int:
        """The most shared memory that a block can have on the current device."""

    def launch(
        self, program: Program, kernel: str, grid: tuple[int, ...], block: tuple[int, ...], arguments: Sequence[Any],
        shared_bytes: int,
    ) -> None:  # fmt: skip
        """Run a kernel of a program on the current stream.

        Arguments are device arrays, whose addresses are passed, and NumPy scalars of the parameters' exact types; a
        scalar of type ``np.void`` is a struct.
        """

    def prepare(
        self, program: Program, kernel: str, grid: tuple[int, ...], block: tuple[int, ...], arguments: Sequence[Any],
        shared_bytes: int,
    ) -> Callable[[Sequence[Any]], None]:  # fmt: skip
        """`launch`, for many launches that differ in their arrays alone, which are given to the result.

        In `arguments` None stands for an array. In a call, None stands for the null address.
        """

    def address(self, array: Any) -> int:
        """The address of a device array's first element."""

    def current_stream(self) -> Stream:
        """The stream of this thread on which operations run."""

    def new_stream(self) -> Stream:
        """A stream whose work does not wait for that of other streams."""

    def new_event(self) -> Event:
        """An event that is done until it is recorded."""

    def on_this_device(self, function: Callable[[], None]) -> Callable[[], None]:
        """The function, on the present device in whatever thread it is called."""

    def pinned(self, size_bytes: int) -> np.ndarray:
        """An uninitialised array of bytes in page-locked host memory."""

    def copy(self, out: Any, x: Any, stream: Stream) -> None:
        """Start a copy on a stream, between contiguous arrays of equal size in bytes.

        One is a device array, the other is one too, or page-locked host memory. The arrays must be kept until the copy
        is complete.
        """

    def capture(self, function: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        """Record the work that a function gives to the device, without doing it.

        Returns
        -------
        result : object
            That of the function. Its arrays have values after a replay, and new ones after the next.
        replay : callable
            Gives the recorded work to the current stream. It keeps the memory that the work uses, but for arrays that
            were made before.

        Raises
        ------
        RuntimeError
            The function read values on the host, or waited for the device. The device's library may raise errors of its
            own.
        """

    def matmul(self, a: Any, b: Any) -> Any:
        """``a @ b``, also during a capture."""

    def special(self) -> Any:
        """The module of the functions of ``scipy.special`` for arrays of the device."""

    def memory(self) -> Memory:
        """The use of the current device's memory.

        The peak is that of the arrays since `reset_peak`, or the memory that the process has taken from the device.
        """

    def reset_peak(self) -> None:
        """Measure the peak of this thread's arrays from now on."""

    # -- memory that another process uses ----------------------------------------------------------------------
    def device_id(self) -> str:
        """The current device, named alike in all processes of the host."""

    def nccl(self) -> Any:
        """The module of NCCL's functions, with the names of ``cupy.cuda.nccl``; None if there is none."""

    def exportable(self, size_bytes: int) -> Any:
        """An uninitialised device array of bytes, which another process of the host can open."""

    def export_handle(self, array: Any) -> bytes:
        """The handle by which another process opens memory of `exportable`."""

    def open_handle(self, handle: bytes, size_bytes: int) -> Any:
        """Memory of another process, as a device array of bytes.

        The other process keeps the memory until this one has closed it.
        """

    def close_handle(self, array: Any) -> None:
        """Close memory of another process, after all work that uses it."""
