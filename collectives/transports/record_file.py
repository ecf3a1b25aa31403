"""The file of a recorded rank: the facts of its program, and the result of each call of its communicators, in order.

A file is a mark and entries that are only appended. An entry is its length, a checksum, one line of JSON, and the bytes
of a result. So the file of a rank that was killed can be read up to its last complete entry.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np

from autograd.errors import CommunicationError

__all__ = ["Entry", "RecordWriter", "decoded", "encoded", "path_of", "read_record"]

T = TypeVar("T")
Entry = tuple[dict[str, Any], bytes]
"""The line of an entry, and the bytes of a result."""

_MARK = b"ringtape record 1\n"
_FRAME = struct.Struct("<QI")


def path_of(folder: str, rank: int) -> str:
    """The file of a rank in the folder of a record."""
    return os.path.join(folder, f"rank-{rank}")


class RecordWriter:
    """Appends entries to a new file. Each is with the system when `add` returns, so a killed process loses none."""

    def __init__(self, path: str):
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        self._file = open(path, "wb")  # noqa: SIM115  # it stays open for as long as the rank records
        self._file.write(_MARK)

    def add(self, line: dict[str, Any], data: Any = b"") -> None:
        text = json.dumps(line).encode() + b"\n"
        size = len(text) + len(data)
        self._file.write(_FRAME.pack(size, zlib.crc32(data, zlib.crc32(text))) + text)
        self._file.write(data)
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_record(path: str) -> list[Entry]:
    """The entries of a file, up to the last complete one.

    Raises
    ------
    CommunicationError
        The file is no record, or an entry before the last one is damaged.
    """
    with open(path, "rb") as file:
        found = file.read()
    if not found.startswith(_MARK):
        raise CommunicationError(f"{path} is no record of this version of ringtape; needed: a file of cc.record")
    return guarded(path, lambda: list(_entries(found)))


def guarded(path: str, read: Callable[[], T]) -> T:
    """Read a part of a file; any error says that the file is damaged."""
    try:
        return read()
    except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError, RecursionError, MemoryError) as error:
        raise CommunicationError(f"the record {path} is damaged: {error}\n  fix: record the program again") from error


def _entries(found: bytes) -> Iterator[Entry]:
    at = len(_MARK)
    while at + _FRAME.size <= len(found):
        size, checksum = _FRAME.unpack_from(found, at)
        begin, at = at + _FRAME.size, at + _FRAME.size + size
        if at > len(found):
            return
        payload = found[begin:at]
        if zlib.crc32(payload) != checksum:
            if at == len(found):
                return
            raise ValueError(f"the checksum of the entry at byte {begin} is wrong")
        text, _, data = payload.partition(b"\n")
        line = json.loads(text)
        if not isinstance(line, dict):
            raise TypeError(f"the entry at byte {begin} is no mapping")
        yield line, data


def encoded(result: Any) -> tuple[Any, Any]:
    """The description of a call's result, for the line of an entry, and its bytes.

    Examples
    --------
    >>> decoded(*encoded([b"a", b"bc"])), decoded(*encoded(np.arange(2))).tolist()
    ([b'a', b'bc'], [0, 1])
    """
    if result is None:
        return None, b""
    if isinstance(result, np.ndarray):
        whole = np.ascontiguousarray(result)
        return [whole.dtype.name, *result.shape], whole.reshape(-1).view(np.uint8).data
    if isinstance(result, list):
        return {"sizes": [len(each) for each in result]}, b"".join(map(bytes, result))
    return {"kind": type(result).__name__}, b""


def decoded(described: Any, data: bytes) -> Any:
    """The result that `encoded` described: None, a new array, or a list of bytes."""
    if described is None:
        return None
    if isinstance(described, dict):
        if "kind" in described:
            raise ValueError(f"a result of type {described['kind']} is not recorded; needed: arrays of the host")
        ends = np.cumsum(described["sizes"]).tolist()
        return [data[end - size : end] for end, size in zip(ends, described["sizes"], strict=True)]
    name, *shape = described
    if name == "bfloat16":
        import ml_dtypes  # as the program did that recorded it

        return np.frombuffer(data, ml_dtypes.bfloat16).reshape(shape).copy()
    return np.frombuffer(data, np.dtype(name)).reshape(shape).copy()
