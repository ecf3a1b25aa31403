"""The C library's allocator: whether freed memory stays in the process."""

from __future__ import annotations

import ctypes
import os

__all__ = ["keep_freed_memory"]

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)
_OWN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed_memory(limit_bytes: int = 1 << 29) -> bool:
    """Make the process keep the memory that it frees, up to `limit_bytes`, for its next arrays.

    By default glibc returns the top of the heap to the system as soon as a step's arrays are freed, and maps every
    array of 32 MiB or more anew. The next step takes its memory from the system again, with a page fault per 4 KiB: up
    to a fifth of the time of a transformer block's step. The peak does not grow. Call it once, before the first step.
    It holds for the whole process, and ringtape never calls it by itself.

    Parameters
    ----------
    limit_bytes : int
        How much free memory at the top of the heap is kept, and from which size on an array is still mapped by itself.

    Returns
    -------
    bool
        Whether it was set. False with a C library that has no ``mallopt``, and where the allocator's own variables
        (``MALLOC_TRIM_THRESHOLD_``, ``MALLOC_MMAP_THRESHOLD_``, ``GLIBC_TUNABLES``) are set in the environment: those
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
