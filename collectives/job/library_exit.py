"""A process that a C library ends: it waits a moment first, and a descriptor shows that.

MPICH ends a process by C's ``exit`` after some errors, such as a truncated message, whatever the error handler is.
Python's exit handlers do not run then. `watch` registers two functions of the C library as exit handlers: the first one
closes a descriptor, and the second one sleeps. Meanwhile the other threads of the process report what it was doing. No
Python code runs in the handlers, so they are safe after the end of the interpreter, too.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

__all__ = ["LibraryExit", "watch"]

_WAIT_S = 2


class LibraryExit:
    """The exit handlers of this process. Until `disarm` is called, they close a descriptor and wait.

    Parameters
    ----------
    number : int
        The descriptor.
    time : ctypes array
        How long the process waits: C's ``struct timespec``, in memory that is never freed.
    """

    def __init__(self, number: int, time: Any):
        self.number = number
        self._time = time

    def has_begun(self) -> bool:
        """Whether the handlers have closed the descriptor."""
        try:
            os.fstat(self.number)
        except OSError:
            return True
        return False

    def disarm(self) -> None:
        """Make them do nothing: the process ends in another way, or it is a forked child."""
        self._time[0] = 0

    def reserve(self) -> None:
        """Close the descriptor and keep its number, which may not be another file's when the handlers close it."""
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, self.number, inheritable=False)
        os.close(null)


def watch(number: int) -> LibraryExit | None:
    """Register the handlers for a descriptor; None where the C library has no such functions."""
    try:
        libc = ctypes.CDLL(None)
        register, close, sleep, allocate = libc.__cxa_atexit, libc.close, libc.nanosleep, libc.calloc
    except (AttributeError, OSError, TypeError):
        return None
    register.argtypes = [ctypes.c_void_p] * 3
    allocate.argtypes, allocate.restype = [ctypes.c_size_t] * 2, ctypes.c_void_p
    time = (ctypes.c_long * 2).from_address(allocate(2, ctypes.sizeof(ctypes.c_long)))
    time[0] = _WAIT_S
    # The handler that is registered last runs first. With an exit status instead of its second argument, nanosleep at
    # most fails to store the time that is left.
    for function, argument in ((sleep, ctypes.addressof(time)), (close, number)):
        if register(ctypes.cast(function, ctypes.c_void_p), argument, None):
            return None
    return LibraryExit(number, time)
