"""The files of a recorded rank: the facts of its program and an entry for each call; and the arrays that it received.

``rank-N`` begins with a mark. Then come entries of 18 bytes, with a text after those that have one. It is written
through a mapping of the file, so an entry costs no call of the system and survives a killed process. A file that ends
within an entry is read up to there: the rank was killed while it wrote.

``rank-N.data`` has the bytes of results, each written before its entry. It begins with a block that is a mapping too,
for the results that come last. A full block is appended to the file, and the next results take its place.

The files belong to their user alone, and replace what was there. Files that are read may come from anybody: they are
data, links are not followed, and damage is a `CommunicationError`.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple, TypeVar

import numpy as np

from autograd.digests import bytes_of_values
from autograd.errors import CommunicationError, WriteError
from autograd.files import opened, taking_place

__all__ = ["Entry", "RecordWriter", "decoded", "digest_of", "guarded", "path_of", "read_record"]

T = TypeVar("T")

_MARK = b"ringtape record 4\n"
_BODY = struct.Struct("<BIIII")
_SIZE = _BODY.size + 1  # and a check of one byte
_TEXT = struct.Struct("<II")
_BYTE = [bytes([k]) for k in range(256)]
_CHUNK_BYTES = 1 << 16  # mapped at a time; a multiple of every page
_BLOCK_BYTES = 1 << 18  # a result of 40 kB then costs 9 us; with a write of its own 19, in blocks of 1 << 16 12
_SHORT_BYTES = 256
_LARGE_BYTES = 1 << 13  # from here on sums of columns are faster than a CRC of all bytes: 20 GB/s beside 5
_COLUMNS = 251  # a prime: rows and columns of a matrix that change places are other sums
_MOST_EMPTY = 1 << 26  # bytes, one after another
TEXT, CALL, SAMPLING, NOTHING, ARRAY, LIST, ALIKE = range(1, 8)
"""Kinds of entries: a line of JSON, a call without its result, which of the next calls are compared, and calls whose
result is none, an array, or a list of bytes; or one in the form of the last result of these calls. 0 is the end."""
_WITH_TEXT = frozenset((TEXT, ARRAY, LIST))
_add, _u8, _u64 = np.add.reduce, np.dtype(np.uint8), np.dtype(np.uint64)


class Entry(NamedTuple):
    """An entry: its kind, two numbers that the kind gives a meaning, the digests of a result and of what the rank gave
    for it, a text, and the bytes of a result."""

    kind: int
    of: int
    number: int
    digest: int
    given: int = 0
    text: bytes = b""
    data: Any = b""


def path_of(folder: str, rank: int) -> str:
    """The file of a rank in the folder of a record."""
    return os.path.join(folder, f"rank-{rank}")


def digest_of(x: Any) -> int:
    """32 bits of an array, bytes or a list of bytes, to which every byte counts; 0 of anything else.

    Of an array above 8 kB they are those of the sums of 251 columns of its 64-bit words: words that are a multiple of
    251 apart may change places unseen. The number of rows is odd: the sums of an even number of signs would be equal.

    Examples
    --------
    >>> x = np.arange(9000.0)
    >>> digest_of(x) == digest_of(x.copy()), digest_of(x) == digest_of(x[::-1]), digest_of(x) == digest_of(-x)
    (True, False, False)
    """
    if x.__class__ is np.ndarray:
        size = x.nbytes
        if size <= _SHORT_BYTES and x.dtype.char not in "gG":  # which have bytes of padding
            return zlib.crc32(x.tobytes())
        flat: Any = bytes_of_values(x) if x.dtype.char in "gG" else x.ravel().view(_u8)
        if size <= _LARGE_BYTES:
            return zlib.crc32(flat)
        rows = size // (8 * _COLUMNS) - 1 | 1
        end = rows * 8 * _COLUMNS
        sums: Any = _add(flat[:end].view(_u64).reshape(rows, _COLUMNS), 0)
        return zlib.crc32(flat[end:], zlib.crc32(sums))
    if isinstance(x, bytes):
        return zlib.crc32(x)
    digest = 0
    if isinstance(x, list):
        for each in x:
            digest = zlib.crc32(each, digest)
    return digest


def _opened(path: str) -> Any:
    """A regular file that is read, and no link."""
    return os.fdopen(opened(path, follow=False), "rb", buffering=0)


class RecordWriter:
    """Writes entries to a new file. Each is in mapped memory when its method returns, so a killed process loses none.

    The files are new, this user's alone, and take the places of earlier ones. So is the folder if it is made here.

    Raises
    ------
    OSError
        The folder cannot be written, or it is full.
    """

    def __init__(self, path: str):
        self._path, self._pid = path, os.getpid()
        os.makedirs(os.path.dirname(path) or ".", mode=0o700, exist_ok=True)
        with ExitStack() as made:  # an earlier record stays until this one has begun
            self._data = made.enter_context(taking_place(f"{path}.data", 0o600))
            self._file = made.enter_context(taking_place(path, 0o600))
            self._begin, self._at, self._end = 0, len(_MARK), 0
            self._map = self._mapped(_CHUNK_BYTES)
            self._map[: len(_MARK)] = _MARK
        self._block: mmap.mmap | None = None
        self._filled = self._blocks = 0
        self._forms: dict[int, tuple[Any, ...]] = {}  # of the last results, by call

    def _mapped(self, size: int) -> mmap.mmap:
        """Map `size` bytes of the file from `_begin`. They are allocated, so a full disk raises an error here."""
        self._reserve(self._file, self._begin, size)
        self._end = self._begin + size
        return mmap.mmap(self._file.fileno(), size, offset=self._begin)

    def _reserve(self, file: Any, at: int, size: int) -> None:
        try:
            os.posix_fallocate(file.fileno(), at, size)
        except OSError as error:
            raise self._full(error) from error

    def _full(self, error: OSError) -> WriteError:
        made = WriteError(
            f"record: {self._path!r} cannot grow: {error.strerror or error}. The calls before are recorded\n"
            "  fix: free space on its disk, or a folder elsewhere"
        )
        made.errno, made.strerror = error.errno, error.strerror
        return made

    def add(self, kind: int, of: int, number: int, digest: int, given: int = 0, text: bytes = b"") -> None:
        """Append an entry. Its text is written first: an entry without one is none."""
        body = _BODY.pack(kind, of, number, digest, given)
        at = self._at
        end = at + _SIZE
        if text:
            end += _TEXT.size + len(text)
        if end > self._end:
            before, self._begin = self._map, at & -mmap.ALLOCATIONGRANULARITY
            self._map = self._mapped(-(-(end - self._begin) // _CHUNK_BYTES) * _CHUNK_BYTES)
            before.close()
        place = at - self._begin
        if text:
            after = place + _SIZE
            self._map[after : end - self._begin] = _TEXT.pack(len(text), zlib.crc32(text)) + text
        self._map[place : place + _SIZE] = body + _BYTE[zlib.crc32(body) & 255]
        self._at = end

    def add_text(self, line: dict[str, Any], number: int = 0) -> None:
        """Append a line of JSON."""
        self.add(TEXT, 0, number, 0, 0, json.dumps(line).encode())

    def add_result(self, of: int, number: int, result: Any, given: int = 0) -> None:
        """Append a call with its result (None, an array or a list of bytes) and the digest of what was given."""
        if result is None:
            self.add(NOTHING, of, number, 0, given)
            return
        form: tuple[Any, ...]
        if isinstance(result, list):
            form = LIST, *map(len, result)
            self._write(b"".join(result))
        else:
            form = ARRAY, result.dtype.char, *result.shape
            self._write(result.tobytes() if result.nbytes <= _SHORT_BYTES else result.ravel().view(_u8).data)
        if self._forms.get(of) == form:
            self.add(ALIKE, of, number, digest_of(result), given)
            return
        self._forms[of] = form
        text = struct.pack(f"<{len(form) - 1}I", *form[1:]) if form[0] == LIST else (
            form[1].encode() + struct.pack(f"<{result.ndim}Q", *result.shape)
        )
        self.add(form[0], of, number, digest_of(result), given, text)

    def _write(self, data: Any) -> None:
        """Append the bytes of a result."""
        begin, size = 0, len(data)
        if self._block is None:  # a record of the order seldom has a result
            self._reserve(self._data, 0, _BLOCK_BYTES)
            self._block = mmap.mmap(self._data.fileno(), _BLOCK_BYTES)
        while size - begin >= (room := _BLOCK_BYTES - self._filled):
            self._block[self._filled :] = data[begin : begin + room]
            begin += room
            self._append(self._block)
        end = self._filled + size - begin
        self._block[self._filled : end] = data[begin:] if begin else data
        self._filled = end

    def _append(self, block: mmap.mmap) -> None:
        """Append the full block to the file."""
        done, place = 0, _BLOCK_BYTES * (1 + self._blocks)
        try:
            while done < _BLOCK_BYTES:  # a signal may interrupt it
                done += os.pwrite(self._data.fileno(), block[done:] if done else block, place + done)
        except OSError as error:
            raise self._full(error) from error
        self._filled, self._blocks = 0, self._blocks + 1

    @property
    def is_open(self) -> bool:
        """Whether this process writes it: a forked child does not."""
        return not self._file.closed and os.getpid() == self._pid

    def close(self) -> None:
        if not self._file.closed:
            self._map.close()
            self._file.truncate(self._at)
            self._file.close()
            if not self._blocks:
                self._data.truncate(self._filled)
            self._data.close()


def read_record(path: str) -> list[Entry]:
    """The entries of a file, up to the last complete one.

    Raises
    ------
    CommunicationError
        The file is no record, or it is damaged.
    """
    found = guarded(path, lambda: _whole(path))
    if not found.startswith(_MARK):
        raise CommunicationError(f"{path} is no record of this version of ringtape; needed: a file of cc.record")
    return guarded(path, lambda: list(_entries(found, _Results(path))))


def _whole(path: str) -> bytes:
    """The bytes of a file. A rank that was killed leaves zeros at its end, but not gigabytes of them."""
    found, empty = bytearray(), 0
    with _opened(path) as file:
        while piece := file.read(1 << 22):
            found += piece
            empty = 0 if piece.strip(b"\0") else empty + len(piece)
            if empty > _MOST_EMPTY:
                raise ValueError(f"it has more than {_MOST_EMPTY} empty bytes")
    return bytes(found)


def guarded(path: str, read: Callable[[], T]) -> T:
    """Read a part of a file; any error says that the file is damaged."""
    try:
        return read()
    except PermissionError as error:
        raise CommunicationError(
            f"the record {path} cannot be read: {error}\n  fix: read it as the user who has recorded it"
        ) from error
    except (
        ArithmeticError, LookupError, TypeError, ValueError, AttributeError, RecursionError, MemoryError, OSError,
        struct.error,
    ) as error:  # fmt: skip
        raise CommunicationError(f"the record {path} is damaged: {error}\n  fix: record the program again") from error


class _Results:
    """The bytes of all results: those of the appended blocks, and then those of the block at the file's beginning."""

    def __init__(self, path: str):
        with _opened(f"{path}.data") as file:
            size = os.fstat(file.fileno()).st_size
            whole = memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) if size else b"")
        self._last, self._blocks = whole[:_BLOCK_BYTES], whole[_BLOCK_BYTES:]
        self._end = len(self._blocks) // _BLOCK_BYTES * _BLOCK_BYTES  # the rank may be killed while it appends
        self.size = self._end + len(self._last)

    def between(self, start: int, end: int) -> Any:
        if end <= self._end:
            return self._blocks[start:end]
        return bytes(self._blocks[start : self._end]) + self._last[max(start - self._end, 0) : end - self._end]


def _entries(found: bytes, results: _Results) -> Iterator[Entry]:
    at, start = len(_MARK), 0
    forms: dict[int, tuple[int, bytes]] = {}  # of the last results, by call
    while at + _SIZE <= len(found) and found[at]:
        body = found[at : at + _BODY.size]
        kind, of, number, digest, given = _BODY.unpack(body)
        if kind > ALIKE or found[at + _BODY.size] != zlib.crc32(body) & 255:
            if not found[at + _SIZE :].strip(b"\0"):
                return  # the rank was killed while it wrote
            raise ValueError(f"the entry at byte {at} has another checksum")
        begin, at, text = at, at + _SIZE, b""
        if kind in _WITH_TEXT:
            if at + _TEXT.size > len(found):
                return
            size, checksum = _TEXT.unpack_from(found, at)
            at += _TEXT.size + size
            if at > len(found):
                return
            text = found[at - size : at]
            if zlib.crc32(text) != checksum:
                raise ValueError(f"the text of the entry at byte {begin} has another checksum")
        if kind == ALIKE:
            kind, text = forms[of]
        end = start
        if kind in (ARRAY, LIST):
            forms[of] = kind, text
            end += _length(kind, text)
            if end > results.size:
                raise ValueError(f"it has {results.size} bytes of results, and the entry at byte {begin} needs {end}")
        yield Entry(kind, of, number, digest, given, text, results.between(start, end))
        start = end
    if at < len(found) and not found[at] and found[at:].strip(b"\0"):
        raise ValueError(f"there is something after its end at byte {at}")


def _length(kind: int, text: bytes) -> int:
    if kind == LIST:
        return sum(struct.unpack(f"<{len(text) // 4}I", text))
    dtype, shape = _form(text)
    count = 1
    for extent in shape:
        count *= extent
    return count * dtype.itemsize


def _form(text: bytes) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """The dtype and shape of an array."""
    name = text[:1].decode()
    if name == "E":
        import ml_dtypes  # as the program did that recorded it

        dtype = np.dtype(ml_dtypes.bfloat16)
    elif name in "?bBhHiIlLqQefdgFDG":
        dtype = np.dtype(name)
    else:
        raise ValueError(f"{name!r} is no dtype")
    return dtype, struct.unpack(f"<{(len(text) - 1) // 8}Q", text[1:])


def decoded(entry: Entry) -> Any:
    """The result in an entry: None, a new array, or a list of bytes."""
    if entry.kind not in (ARRAY, LIST):
        return None
    if entry.kind == LIST:
        found, at = [], 0
        for size in struct.unpack(f"<{len(entry.text) // 4}I", entry.text):
            found.append(bytes(entry.data[at : at + size]))
            at += size
        result: Any = found
    else:
        dtype, shape = _form(entry.text)
        result = np.frombuffer(entry.data, dtype).reshape(shape).copy()
    if digest_of(result) != entry.digest:
        raise ValueError("a result has another checksum")
    return result
