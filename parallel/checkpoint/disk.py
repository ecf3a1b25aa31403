"""Files on the disk: data files, written by safetensors and read by ranges of bytes; checksums; names made durable.

All that touches the disk while a checkpoint is written is here, and announces itself to `collectives.testing.faults`,
so that tests can end a process between any two of these steps.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from autograd.errors import CheckpointError, DamagedCheckpoint, DependencyError
from autograd.nn.weights import library

__all__ = ["CHECKSUM", "Reader", "checksum_named", "make_durable", "rename", "storable", "write_data", "write_text"]


# -- checksums ---------------------------------------------------------------------------------------------------------
def _crc32(data: Any) -> str:
    return f"{zlib.crc32(data):08x}"


def _xxh3() -> Callable[[Any], str] | None:
    try:
        import xxhash
    except ImportError:
        return None
    return lambda data: str(xxhash.xxh3_64_hexdigest(data))


def checksum_named(name: str, folder: Any) -> Callable[[Any], str]:
    """The function of a checksum.

    Raises
    ------
    DependencyError
        It is that of a library that is not installed.
    CheckpointError
        It is unknown.
    """
    if name == "crc32":
        return _crc32
    if name != "xxh3_64":
        raise CheckpointError(f"checkpoint {folder}: its checksums are {name!r}; known are 'xxh3_64' and 'crc32'")
    found = _xxh3()
    if found is None:
        raise DependencyError(
            f"checkpoint {folder}: its checksums are those of xxhash, which is not installed\n"
            "  fix: pip install 'ringtape[checkpoint]'\n  or:  load(..., checksums=False)"
        )
    return found


CHECKSUM = "crc32" if _xxh3() is None else "xxh3_64"
"""The checksum of new checkpoints. xxh3 is three to six times as fast as crc32, and faster than any disk."""


def bytes_of(array: Any) -> memoryview:
    """The bytes of a contiguous array."""
    return memoryview(array.reshape(-1).view(np.uint8))


# -- writing -----------------------------------------------------------------------------------------------------------
_KNOWN = frozenset((
    "float64", "float32", "float16", "int64", "uint64", "int32", "uint32", "int16", "uint16", "int8", "uint8", "bool",
    "complex64",
))  # fmt: skip


def storable(array: Any) -> Any:
    """An array with the same bytes, of a dtype that a safetensors file can have.

    Complex numbers of 128 bits are two numbers each; of other dtypes the file has the bytes. The manifest knows better.
    """
    host = np.ascontiguousarray(array)
    host = host.reshape(array.shape)  # ascontiguousarray makes a number an array of one element
    if host.dtype.byteorder == ">" or (host.dtype.byteorder == "=" and not _IS_LITTLE):
        host = host.astype(host.dtype.newbyteorder("<"))
    if host.dtype.name in _KNOWN:
        return host
    if host.dtype == np.complex128:
        return host.reshape(*host.shape, 1).view(np.float64)
    return host.reshape(*host.shape, 1).view(np.uint8)


_IS_LITTLE = struct.pack("=H", 1) == b"\1\0"


def write_data(path: Path, arrays: Mapping[str, Any], about: Mapping[str, str]) -> dict[str, tuple[int, int]]:
    """Write arrays as a safetensors file, to the disk, and return the bytes of each in the file.

    Raises
    ------
    CheckpointError
        The disk is full, or the file cannot be written.
    """
    save_file = library("checkpoint.save").numpy.save_file
    try:
        point("write data", path)
        save_file(dict(arrays), path, dict(about))
        point("sync data", path)
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            return offsets(file, os.fstat(file.fileno()).st_size, path)
    except CheckpointError:
        raise
    except Exception as error:  # safetensors has errors of its own for those of the system
        raise CheckpointError(f"checkpoint.save: {path} could not be written: {error}") from error


def point(name: str, path: Path | None = None) -> None:
    """A step of writing, to a file or a directory, at which a test may end the process."""


def offsets(file: Any, size: int, path: Any) -> dict[str, tuple[int, int]]:
    """The bytes of each array in a safetensors file."""
    length = struct.unpack("<Q", file.read(8))[0]
    if length > size - 8:
        raise CheckpointError(f"checkpoint: {path} has a header of {length} bytes, and {size} bytes in all")
    header = json.loads(file.read(length))
    return {
        name: (8 + length + each["data_offsets"][0], 8 + length + each["data_offsets"][1])
        for name, each in header.items() if name != "__metadata__"
    }  # fmt: skip


def write_text(path: Path, text: str) -> None:
    """Write a text file, to the disk, under another name first."""
    part = path.with_name(f"{path.name}.part")
    try:
        point("write text", part)
        with open(part, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            point("sync text", part)
            os.fsync(file.fileno())
        rename(part, path)
    except OSError as error:
        raise CheckpointError(f"checkpoint.save: {path} could not be written: {error}") from error


def rename(old: Path, new: Path) -> None:
    """Give a file or a directory another name, durably."""
    point("rename")
    os.rename(old, new)
    make_durable(new.parent)


def make_durable(folder: Path) -> None:
    """Write the names in a directory to the disk."""
    point("sync directory")
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # some file systems of networks refuse it
            os.fsync(number)
    finally:
        os.close(number)


# -- reading -----------------------------------------------------------------------------------------------------------
class Reader:
    """Reads ranges of bytes of some files in a directory. Files are opened at their first use.

    Parameters
    ----------
    folder : Path
    files : sequence of (str, int)
        Names and sizes.
    """

    def __init__(self, folder: Path, files: Sequence[tuple[str, int]]):
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
            try:
                number = os.open(self.folder / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            except OSError as error:
                raise DamagedCheckpoint(f"checkpoint {self.folder}, {name}: it cannot be read: {error}") from None
            self._open[file] = number
            have = os.fstat(number).st_size
            if have != size:
                raise DamagedCheckpoint(
                    f"checkpoint {self.folder}, {name}: it has {have} bytes, and {size} when it was saved"
                )
        return self._open[file]

    def read(self, file: int, begin: int, into: memoryview) -> None:
        """Read bytes from a place in a file on."""
        number, at = self.descriptor(file), 0
        while at < len(into):
            n = os.preadv(number, [into[at : at + (1 << 28)]], begin + at)
            if not n:
                name = self.files[file][0]
                raise DamagedCheckpoint(f"checkpoint {self.folder}, {name}: it ends at byte {begin + at}")
            at += n
