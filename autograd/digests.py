"""Digests: BLAKE2b, checksums of files, the bytes of values, and projections, equal up to rounding where arrays are.

The checksums of files are xxh3 of the library xxhash, which is optional and imported here alone, and otherwise crc32.
BLAKE2b is that of the standard library, without the rest of `hashlib`: importing `hashlib` loads OpenSSL, which takes a
twentieth of the start of a program, on every rank.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any
from zlib import crc32

import numpy as np

from .arrays.half import is_half

try:
    from _blake2 import blake2b  # the same class
except ImportError:  # an interpreter that keeps it elsewhere
    from hashlib import blake2b

__all__ = [
    "CHECKSUMS", "Projection", "blake2b", "bytes_of_values", "checksum_class", "is_near", "projection",
    "usual_checksum",
]  # fmt: skip


class _Crc32:
    """The checksum of zlib, with the methods of those of hashlib."""

    def __init__(self) -> None:
        self.value = 0

    def update(self, data: Any) -> None:
        self.value = crc32(data, self.value)

    def hexdigest(self) -> str:
        return f"{self.value:08x}"


CHECKSUMS = ("xxh3_64", "crc32")


def checksum_class(name: str) -> Callable[[], Any] | None:
    """The class of one of `CHECKSUMS`, with ``update`` and ``hexdigest``; None if its library is not installed."""
    if name == "crc32":
        return _Crc32
    try:
        import xxhash
    except ImportError:
        return None
    made: Callable[[], Any] = xxhash.xxh3_64
    return made


def usual_checksum() -> str:
    """The checksum of new files. xxh3 is ten times as fast as crc32 (12 and 1 GB/s), and faster than any disk."""
    return CHECKSUMS[0] if checksum_class(CHECKSUMS[0]) else CHECKSUMS[1]

Projection = tuple[float, float]
"""The dot product of an array with fixed weights, and the largest difference that rounding may make."""

_LENGTH = 4096
_TOLERANCES = {np.dtype(np.float16): 8e-3, np.dtype(np.float32): 1e-4, np.dtype(np.float64): 1e-9}
"""A share of the norm. Sums that are taken in another order differ by less, and other draws by more."""
_OF_BFLOAT16 = 6e-2


@cache  # of two dtypes; without it each digest takes 23 us more, and at import it would load numpy.random
def _weights(dtype: np.dtype[Any]) -> Any:
    found = np.random.Generator(np.random.PCG64(1)).standard_normal(_LENGTH).astype(dtype)
    found.flags.writeable = False
    return found


def projection(array: Any) -> Projection | None:
    """Return the digest of an array on the host: random weights, so that it changes if elements change or move.

    It reads the array twice, by dot products. Integers are exact. None is returned for arrays elsewhere, or without
    values.

    Examples
    --------
    >>> x = np.arange(6.0)
    >>> is_near(projection(x), projection(x * (1 + 1e-15))), is_near(projection(x), projection(x[::-1]))
    (True, False)
    """
    if not isinstance(array, np.ndarray | np.generic):
        return None
    x = np.ascontiguousarray(array).reshape(-1)
    if x.dtype.kind == "c":
        x = x.view(x.real.dtype)
    tolerance = _TOLERANCES.get(x.dtype)
    if x.dtype.itemsize == 2 and is_half(x.dtype):
        tolerance = tolerance or _OF_BFLOAT16
        x = x.astype(np.float32)
    if tolerance is None:
        return float(crc32(x.data.cast("B"))), 0.0
    norm, weights = math.sqrt(x.dot(x)), _weights(x.dtype)
    while x.size > _LENGTH:
        rows = x[: x.size // _LENGTH * _LENGTH].reshape(-1, _LENGTH)
        rest = x[rows.size :]
        x = np.append(rows.dot(weights), rest.dot(weights[: rest.size]))
        weights = weights[::-1]
    return float(x.dot(weights[: x.size])), norm * tolerance


def is_near(a: Projection | None, b: Projection | None) -> bool:
    """Whether two projections may be those of one array, computed twice. Those that are not finite tell nothing."""
    return True if a is None or b is None else not abs(a[0] - b[0]) > max(a[1], b[1])


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
