"""Files on the disk: data files, written by safetensors and read by ranges of bytes; checksums; names made durable.

All that touches the disk while a checkpoint is written is here, and announces itself to `collectives.testing.faults`,
so that tests can end a process between any two of these steps.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from autograd.digests import CHECKSUMS, checksum_class, usual_checksum
from autograd.errors import CheckpointError, DamagedCheckpoint, DependencyError, printable
from autograd.files import PrivateFolder, new_file
from autograd.files import opened as opened_file
from autograd.nn.weights import library
from collectives.faults import points as faults

__all__ = [
    "CHECKSUM", "DTYPES", "NAMES", "NO_CHECKSUM", "Reader", "checksum_named", "dtype_text", "header_of", "make_durable",
    "opened", "private", "refuse_other_size", "rename", "running_checksum", "storable", "stored_as",
    "value_digest", "write_data", "write_text",
]  # fmt: skip


# -- checksums ---------------------------------------------------------------------------------------------------------
def running_checksum(name: str, folder: Any) -> Callable[[], Any]:
    """The class of a checksum of data that comes in parts, with ``update`` and ``hexdigest``.

    Raises
    ------
    DependencyError
        It is that of a library that is not installed.
    CheckpointError
        It is unknown.
    """
    if name not in CHECKSUMS:
        raise CheckpointError(f"checkpoint {folder}: its checksums are {name!r}; known are 'xxh3_64' and 'crc32'")
    found = checksum_class(name)
    if found is None:
        raise DependencyError(
            f"checkpoint {folder}: its checksums are those of xxhash, which is not installed\n"
            "  fix: pip install 'ringtape[checkpoint]'\n  or:  load(..., checksums=False)"
        )
    return found


def checksum_named(name: str, folder: Any) -> Callable[[Any], str]:
    """The function of a checksum; see `running_checksum`."""
    make = running_checksum(name, folder)

    def checksum(data: Any) -> str:
        made = make()
        made.update(data)
        return str(made.hexdigest())

    return checksum


CHECKSUM = usual_checksum()
"""The checksum of new checkpoints."""
usual_digest = checksum_named(CHECKSUM, "")
NO_CHECKSUM = "0" * len(usual_digest(b""))
"""A text of the same length as a checksum."""


def value_digest(array: Any) -> str:
    """The digest of a host array, its shape and dtype."""
    return f"{array.dtype.str}{array.shape}{usual_digest(storable(array))}"


def bytes_of(array: Any) -> memoryview:
    """The bytes of a contiguous array."""
    return memoryview(array.reshape(-1).view(np.uint8))


# -- writing -----------------------------------------------------------------------------------------------------------
NAMES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "int64": "I64", "uint64": "U64", "int32": "I32",
    "uint32": "U32", "int16": "I16", "uint16": "U16", "int8": "I8", "uint8": "U8", "bool": "BOOL", "complex64": "C64",
}  # fmt: skip
"""The names of dtypes in safetensors files."""
DTYPES = {name: np.dtype(name) for name in NAMES}
_NAME_OF = {dtype: name for name, dtype in DTYPES.items()}
_LONGEST_HEADER = 100_000_000  # bytes; the limit of the library


def stored_as(dtype: Any, shape: Sequence[int]) -> tuple[str, tuple[int, ...]]:
    """The dtype and the shape that an array has in a safetensors file.

    Complex numbers of 128 bits are two numbers each; of other dtypes the file has the bytes. The manifest knows better.

    Examples
    --------
    >>> stored_as(np.dtype("float32"), (2, 3)), stored_as(np.dtype("<U4"), (2,))
    (('float32', (2, 3)), ('uint8', (2, 16)))
    """
    if (name := dtype_text(dtype)) in NAMES:
        return name, tuple(shape)
    if dtype == np.complex128:
        return "float64", (*shape, 2)
    return "uint8", (*shape, dtype.itemsize)


def dtype_text(dtype: Any) -> str:
    """The name of a dtype, which does not tell the order of bytes: that of a file is little-endian."""
    if dtype in _NAME_OF:  # NumPy would put it together anew at each call
        return _NAME_OF[dtype]
    return str(dtype.newbyteorder("<").str if dtype.kind in "USMm" or dtype.type is np.void else dtype.name)


def storable(array: Any) -> Any:
    """An array with the same bytes, of a dtype that a safetensors file can have."""
    host = np.ascontiguousarray(array)
    host = host.reshape(array.shape)  # ascontiguousarray makes a number an array of one element
    if host.dtype.byteorder == ">" or (host.dtype.byteorder == "=" and not _IS_LITTLE):
        host = host.astype(host.dtype.newbyteorder("<"))
    return host if host.dtype in _NAME_OF else host.reshape(*host.shape, 1).view(stored_as(host.dtype, ())[0])


_IS_LITTLE = struct.pack("=H", 1) == b"\1\0"


def write_data(path: str, arrays: Mapping[str, Any], about: Mapping[str, str]) -> dict[str, tuple[int, int]]:
    """Write arrays as a safetensors file, to the disk, and return the bytes of each in the file.

    Raises
    ------
    CheckpointError
        The disk is full, or the file cannot be written.
    """
    save_file = library("checkpoint.save").numpy.save_file
    try:
        above, _, name = path.rpartition("/")
        with private(above) as folder:
            point("write data", path)
            save_file(dict(arrays), folder.path_of(name), dict(about))
            point("sync data", path)
            with open(folder.opened(name), "rb") as file:
                os.fsync(file.fileno())
                header = header_of(file, os.fstat(file.fileno()).st_size, path)
                return {name: (begin, end) for name, (_, _, begin, end) in header.items()}
    except CheckpointError:
        raise
    except Exception as error:  # safetensors has errors of its own for those of the system
        raise CheckpointError(f"checkpoint.save: {path} could not be written: {error}") from error


class _Writer(threading.local):
    rank: int | None = None


writer = _Writer()
"""Whose `rank` is that for which a thread writes which is no rank itself."""


def point(name: str, path: str | None = None) -> None:
    """Announce a step of writing, to a file or a directory, at which a fault can be injected."""
    if faults.listeners.by_thread:
        faults.point(f"checkpoint.{name.replace(' ', '_')}", writer.rank)


def header_of(file: Any, size: int, path: Any) -> dict[str, tuple[str, tuple[int, ...], int, int]]:
    """The arrays of a safetensors file: for each its dtype, as the file names it, its shape, and its bytes in the file.

    Raises
    ------
    DamagedCheckpoint
        The file has no such header. Memory is taken for a header that is in the file, and has the size of one.
    """
    mark = file.read(8)
    length = struct.unpack("<Q", mark)[0] if len(mark) == 8 else 0
    if not 2 <= length <= min(size - 8, _LONGEST_HEADER):
        raise DamagedCheckpoint(
            f"checkpoint: {path}, bytes 0 to 8: they give {length} bytes as the length of the header, and the file has "
            f"{size} bytes"
        )
    found = {}
    try:
        for name, each in json.loads(file.read(length)).items():
            if name != "__metadata__":
                begin, end = each["data_offsets"]
                shape = tuple(map(int, each["shape"]))
                found[name] = str(each["dtype"]), shape, 8 + length + int(begin), 8 + length + int(end)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        text = printable(f"{type(error).__name__}: {error}")[:200]
        raise DamagedCheckpoint(
            f"checkpoint: {path}, bytes 8 to {8 + length}: the header is none of a safetensors file: {text}"
        ) from None
    return found


def private(path: str) -> PrivateFolder:
    """The folder of a checkpoint that is being written, which only its user can enter.

    Raises
    ------
    CheckpointError
        It was replaced.
    """
    found = PrivateFolder.find(path)
    if found is None:
        raise CheckpointError(
            f"checkpoint.save: {path} is not the folder that the first rank has made: it is gone, or another user has "
            "put another one there\n  fix: a directory in which other users cannot write"
        )
    return found


def write_text(path: str, text: str, *, is_kept: bool = True) -> None:
    """Write a text file, to the disk, under another name first. The name is made durable if the file is kept.

    A file that another process waits for, and removes with its directory, may be gone when this returns.
    """
    part = f"{path}.part"
    try:
        point("write text", part)
        try:
            os.unlink(part)
        except FileNotFoundError:
            pass
        with open(new_file(part), "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            point("sync text", part)
            os.fsync(file.fileno())
        if is_kept:
            rename(part, path)
        else:
            point("rename")
            os.rename(part, path)
    except OSError as error:
        with suppress(OSError):
            os.unlink(part)
        raise CheckpointError(f"checkpoint.save: {path} could not be written: {error}") from error


def rename(old: str, new: str) -> None:
    """Give a file or a directory another name, durably."""
    point("rename")
    os.rename(old, new)
    make_durable(new.rpartition("/")[0])


def make_durable(folder: str) -> None:
    """Write the names in a directory to the disk."""
    point("sync directory")
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(number)
    except OSError:
        pass  # some file systems of networks refuse it
    finally:
        os.close(number)


_IN_CACHE = 1 << 18  # bytes


# -- reading -----------------------------------------------------------------------------------------------------------
class Reader:
    """Reads ranges of bytes of some files in a directory. Files are opened at their first use.

    Parameters
    ----------
    folder : str
    files : sequence of (str, int)
        Names and sizes. They may be set later.
    """

    def __init__(self, folder: str, files: Sequence[tuple[str, int]] = ()):
        self.folder, self.files = folder, files
        self._open: dict[int, int] = {}

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *exception: Any) -> None:
        for number in self._open.values():
            os.close(number)
        self._open.clear()

    def descriptor(self, file: int) -> int:
        """The descriptor of a file, whose size has been checked."""
        if file not in self._open:
            name, size = self.files[file]
            number, have = opened(self.folder, name)
            self._open[file] = number
            if have != size:
                raise DamagedCheckpoint(
                    f"checkpoint {self.folder}, {name}: it has {have} bytes, and {size} when it was saved"
                )
        return self._open[file]

    def read(
        self, file: int, begin: int, into: memoryview, seen: Callable[[memoryview], object] | None = None
    ) -> None:
        """Read bytes from a place in a file on. `seen` gets them in pieces, while they are in the processor's cache."""
        number, at = self.descriptor(file), 0
        most = 1 << 28 if seen is None else _IN_CACHE
        while at < len(into):
            try:
                n = os.preadv(number, [into[at : at + most]], begin + at)
            except OSError as error:
                raise DamagedCheckpoint(
                    f"checkpoint {self.folder}, {self.files[file][0]}, byte {begin + at}: it cannot be read: {error}"
                ) from None
            if not n:
                raise DamagedCheckpoint(
                    f"checkpoint {self.folder}, {self.files[file][0]}: it ends at byte {begin + at}"
                )
            if seen is not None:
                seen(into[at : at + n])
            at += n

    def blocks(self, file: int, begin: int, end: int) -> Iterator[memoryview]:
        """Read bytes of a file in blocks, each in the memory of the one before."""
        held = memoryview(bytearray(min(end - begin, _BLOCK)))
        for at in range(begin, end, _BLOCK):
            part = held[: min(_BLOCK, end - at)]
            self.read(file, at, part)
            yield part


_BLOCK = 1 << 22  # bytes


def opened(folder: str, name: str) -> tuple[int, int]:
    """Open a file of a checkpoint for reading: its descriptor, and its size. Links to other files are not followed.

    Raises
    ------
    DamagedCheckpoint
        It is no regular file, or cannot be read.
    """
    try:
        number = opened_file(f"{folder}/{name}", follow=False)
    except OSError as error:
        fault = f"it cannot be read: {error.strerror}"
        if error.errno in (errno.ELOOP, errno.EINVAL, errno.EISDIR):
            fault = "it is a symbolic link" if error.errno == errno.ELOOP else "it is no regular file"
        raise DamagedCheckpoint(f"checkpoint {folder}, {name}: {fault}") from None
    return number, os.fstat(number).st_size


def refuse_other_size(folder: str, name: str, size: int) -> None:
    """Raise DamagedCheckpoint unless a regular file of this size is there."""
    try:
        status = os.stat(f"{folder}/{name}", follow_symlinks=False)
    except OSError as error:
        raise DamagedCheckpoint(f"checkpoint {folder}, {name}: it cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(status.st_mode):
        raise DamagedCheckpoint(f"checkpoint {folder}, {name}: it is no regular file")
    if status.st_size != size:
        raise DamagedCheckpoint(
            f"checkpoint {folder}, {name}: it has {status.st_size} bytes, and {size} when it was saved"
        )
