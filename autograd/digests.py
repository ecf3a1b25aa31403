"""What digests are made of: BLAKE2b of the standard library without the rest of `hashlib`, and the bytes of values.

Importing `hashlib` loads OpenSSL, which takes a twentieth of the start of a program, on every rank.
"""

from __future__ import annotations

from typing import Any

import numpy as np

try:
    from _blake2 import blake2b  # the same class
except ImportError:  # an interpreter that keeps it elsewhere
    from hashlib import blake2b

__all__ = ["blake2b", "bytes_of_values"]

_LONG = np.dtype(np.longdouble).itemsize
_USED = 10 if np.finfo(np.longdouble).nmant == 63 else _LONG  # bytes; the 80 bits of x86 lie in 16 bytes


def bytes_of_values(host: Any) -> Any:
    """The bytes of a host array, flat. Those between long doubles, which may differ where the values do not, are 0.

    Examples
    --------
    >>> import numpy
    >>> bytes_of_values(numpy.array([1, 258], ">u2"))
    array([0, 1, 1, 2], dtype=uint8)
    """
    found = np.ascontiguousarray(host).reshape(-1).view(np.uint8)
    if _USED < _LONG and host.dtype.char in "gG":
        found = found.copy()
        found.reshape(-1, _LONG)[:, _USED:] = 0
    return found
