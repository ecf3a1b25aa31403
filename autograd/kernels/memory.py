"""What the C library's allocator does with freed memory, which decides what a large array costs.

By its defaults glibc gives the top of the heap back to the system as soon as a step's arrays are freed, and maps every
array of 32 MiB and more anew. Each step then takes its memory from the system again, a page fault per 4 KiB: of a
transformer block's step that is a fifth of the time. `keep_freed` has the process keep what it frees for its next
arrays instead. The first kernel of the host calls it, once. Its peak does not grow by that.

Whoever has set the allocator's own variables (`MALLOC_TRIM_THRESHOLD_`, `MALLOC_MMAP_THRESHOLD_`, `GLIBC_TUNABLES`), or
``RINGTAPE_KEEP_FREED=0``, keeps them.
"""

from __future__ import annotations

import os

__all__ = ["keep_freed"]

KEPT_BYTES = 1 << 29
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)
_OWN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed(limit_bytes: int = KEPT_BYTES) -> bool:
    """Have the process keep up to `limit_bytes` of freed memory; False where that is not to be, or cannot be.

    Examples
    --------
    >>> from autograd.kernels.memory import keep_freed
    >>> keep_freed() in (True, False)
    True
    """
    if os.environ.get("RINGTAPE_KEEP_FREED") == "0" or any(name in os.environ for name in _OWN):
        return False
    import ctypes

    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library
        return False
    return bool(mallopt(_TRIM_THRESHOLD, limit_bytes)) and bool(mallopt(_MMAP_THRESHOLD, limit_bytes))
