"""Configures the C library's allocator to keep freed memory in the process."""

from __future__ import annotations

import ctypes
import os

__all__ = ["keep_freed_memory"]

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)
_OWN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed_memory(limit_bytes: int = 1 << 29) -> bool:
    """Make the process keep the memory that it frees, up to `limit_bytes`, for its next arrays.

    By default glibc returns the top of the heap to the system as soon as a step's arrays are freed, and maps every
    array of 32 MiB or more anew. The next step requests its memory from the system again, with a page fault per 4 KiB.
    That takes up to a fifth of the time of a transformer block's step. The peak does not grow. Call this function once,
    before the first step. It affects the whole process, and ringtape never calls it by itself.

    Parameters
    ----------
    limit_bytes : int
        The free memory at the top of the heap that is kept, and the size from which an array is mapped separately.

    Returns
    -------
    bool
        Whether the limit was set. False if the C library has no ``mallopt``, or if the allocator's variables
        (``MALLOC_TRIM_THRESHOLD_``, ``MALLOC_MMAP_THRESHOLD_``, ``GLIBC_TUNABLES``) are set in the environment, which
        take precedence.

    Notes
    -----
    Source: mallopt(3), ``M_TRIM_THRESHOLD`` and ``M_MMAP_THRESHOLD``.

    Examples
    --------
    >>> from autograd import kernels
    >>> kernels.keep_freed_memory() in (True, False)
    True
    """
    if any(name in os.environ for name in _OWN):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library
        return False
    return bool(mallopt(_TRIM_THRESHOLD, limit_bytes)) and bool(mallopt(_MMAP_THRESHOLD, limit_bytes))
