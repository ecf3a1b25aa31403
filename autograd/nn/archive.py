"""`.npz` archives: written whole or not at all, and read with every entry checked.

An archive is a zip file of ``.npy`` entries, which are not compressed, so that it needs no more memory than it has
bytes. Besides arrays it may have the entry "structure.json". The comment of each entry is a JSON object with the shape
and the dtype of its array; the comment of the archive is a digest of its directory. Each entry has a checksum of zip.
So a changed bit is found wherever it matters.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from .. import parsing
from ..arrays.device import dtype_named
from ..digests import blake2b
from ..errors import ArgumentError, FileError, RingtapeError, printable

__all__ = ["Archive", "CheckedFile", "Header", "STRUCTURE", "json_of", "write_archive"]

STRUCTURE = "structure.json"
_MARK = b"ringtape "
_AT_ONCE = 1 << 16  # bytes
_LONGEST_NAME = 16_000  # characters, of which UTF-8 makes at most 64,000 bytes; a zip file has room for 65,535
_LONGEST_HEADER = 2048  # characters; that of an array of 64 dimensions is shorter
_OTHERS = (
    (b"\x93NUMPY", "a .npy file, which has one array and no name\n  fix: array = numpy.load(path)"),
    (b"\x80", "a pickle, as torch.save and pickle.dump write it. It may run any program, and is not read\n"
     "  fix: save arrays, numpy.savez(path, **arrays), where the pickle is from"),
)  # fmt: skip


class Header(NamedTuple):
    """The description of an array at the beginning of its entry."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_fortran: bool
    start: int
    """The place of the first number in the entry, in bytes."""


# -- writing -----------------------------------------------------------------------------------------------------------
def write_archive(
    file: BinaryIO, arrays: Mapping[str, Any], comments: Mapping[str, Mapping[str, Any]], structure: Any
) -> None:
    """Write arrays by name, with comments, and what is no array.

    Raises
    ------
    ArgumentError
        A name is longer than the format has room for.
    """
    import zipfile  # here: it loads 12 modules, which an import of autograd does not need

    for name in arrays:
        if len(name) > _LONGEST_NAME:
            raise ArgumentError(
                f"save: the name {name[:40]!r}... has {len(name)} characters; needed: at most {_LONGEST_NAME}\n"
                "  fix: shorter keys"
            )
    with zipfile.ZipFile(file, "w", allowZip64=True) as made:
        if structure is not None:
            made.writestr(STRUCTURE, json.dumps(structure))
        for name, given in arrays.items():
            array = np.asanyarray(given)
            about = {"layout": {}, "places": {}, **comments.get(name, {}), "shape": array.shape,
                     "dtype": array.dtype.name if array.dtype.kind == "V" else array.dtype.str}  # fmt: skip
            info = zipfile.ZipInfo(f"{name}.npy")
            info.comment = json.dumps(about).encode()
            with made.open(info, "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, array, allow_pickle=False)
        made.comment = _digest(made.infolist())


def _digest(infos: list[Any]) -> bytes:
    lines = [repr((info.filename, info.CRC, info.file_size, info.comment)) for info in infos]
    return _MARK + blake2b("\n".join(lines).encode(), digest_size=8).hexdigest().encode()


# -- reading -----------------------------------------------------------------------------------------------------------
def json_of(text: bytes | str, objects: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """The value of a JSON text. `objects` makes one of the (name, value) pairs of an object, by default a dict.

    Raises
    ------
    ValueError
        It is no JSON, or is nested too deeply.
    """
    try:
        return json.loads(text, object_pairs_hook=objects)
    except RecursionError:
        raise ValueError("JSON that is nested too deeply") from None


class CheckedFile:
    """A file that is read, and whose faults are errors that name it and the entry.

    Parameters
    ----------
    caller : str
        The call, for messages: what it reads.
    """

    def __init__(self, caller: str):
        self.caller = caller

    def refuse(self, fault: str, entry: str = "") -> Any:
        where = f", entry {printable(entry)!r}" if entry else ""
        raise FileError(f"{self.caller}{where}: {fault}")

    @contextmanager
    def checked(self, entry: str) -> Iterator[None]:
        """A block in which each error is one of the file."""
        try:
            yield
        except RingtapeError:
            raise
        except Exception as error:  # the libraries raise many kinds for what is damaged
            text = printable(str(error)).partition("\n")[0][:200] or type(error).__name__
            if "pickle" in text:
                text = "it has objects, and not numbers"
            raise FileError(
                f"{self.caller}, entry {printable(entry)!r}: it is damaged, or is no file that save has written: {text}"
            ) from None


class Archive(CheckedFile):
    """An archive that is read.

    Parameters
    ----------
    file : file
    caller : str
        The call, for messages: what it reads.

    Attributes
    ----------
    names : list of str
        Of the arrays.
    structure : object
        The content of "structure.json"; None if there is none.
    is_own : bool
        Whether its matrices are as ringtape stores them, unless the comment of an entry says otherwise: always.
    checksum : str
        The name of the checksum that it has of each array.

    Raises
    ------
    FileError
        It is no archive, it is damaged, or it is compressed. The methods raise it, too.
    """

    is_own = True
    checksum = "crc32"

    def __init__(self, file: BinaryIO, caller: str):
        import zipfile

        super().__init__(caller)
        self.structure: Any = None
        with self.checked("its beginning"):
            begin = file.read(8)
            size = file.seek(0, os.SEEK_END)
        if not begin.startswith(b"PK"):
            kinds = (text for mark, text in _OTHERS if begin.startswith(mark))
            self.refuse("it is " + ("empty" if not begin else next(kinds, "no .npz archive")))
        with self.checked("its directory"):
            self._zip = zipfile.ZipFile(file)
        infos = self._zip.infolist()
        self._infos = {info.filename: info for info in infos}
        if self._zip.comment and self._zip.comment != _digest(infos):
            self.refuse("its directory is damaged")
        if len(self._infos) < len(infos):
            self.refuse("it has an entry twice")
        for info in infos:
            if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
                self.refuse(
                    "it is compressed: it may need any amount of memory, and save does not compress\n  fix: "
                    "module.load_state_dict(dict(numpy.load(path))), if you trust the file", info.filename,
                )  # fmt: skip
            if not info.filename.endswith(".npy") and info.filename != STRUCTURE:
                self.refuse("it is no array; needed: a file that save has written, or arrays of numpy.savez",
                            info.filename)  # fmt: skip
        if sum(max(info.file_size, info.compress_size) for info in infos) > size:
            self.refuse(f"its entries are larger than the file, which has {size} bytes")
        self.names = [name.removesuffix(".npy") for name in self._infos if name != STRUCTURE]
        if STRUCTURE in self._infos:
            with self.checked(STRUCTURE):
                self.structure = json_of(bytes(self._bytes(STRUCTURE)))
            if not isinstance(self.structure, dict):
                self.refuse("it is no JSON object", STRUCTURE)

    def _bytes(self, filename: str) -> bytearray:
        info = self._infos[filename]
        data = bytearray(info.file_size)
        view = memoryview(data)
        at = 0
        with self._zip.open(info) as stream:
            while n := stream.readinto(view[at : at + _AT_ONCE]):  # type: ignore[attr-defined]  # it is a raw stream
                at += n
            if at < len(data) or stream.read(1):
                raise ValueError(f"it has {at} bytes of {len(data)}")
        return data

    def comment(self, name: str) -> dict[str, Any]:
        """The content of an entry's comment."""
        with self.checked(name):
            found = json_of(self._infos[f"{name}.npy"].comment or b"{}")
            if not isinstance(found, dict) or not all(isinstance(found.get(key, {}), dict) for key in
                                                      ("layout", "places")):  # fmt: skip
                raise ValueError("its comment is no JSON object of save")
            return found

    def header(self, name: str) -> Header:
        """The beginning of an entry, without the array."""
        about = self.comment(name)
        with self.checked(name), self._zip.open(self._infos[f"{name}.npy"]) as stream:
            return self._header(name, stream, about)

    def _header(self, name: str, stream: Any, about: Mapping[str, Any]) -> Header:
        version = np.lib.format.read_magic(stream)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"version {version} of .npy")
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        try:
            with parsing.lock:
                shape, is_fortran, dtype = read(stream, max_header_size=_LONGEST_HEADER)
        except MemoryError:  # the parser's stack
            raise ValueError("its header is nested too deeply") from None
        if dtype.hasobject or dtype.fields is not None or dtype.subdtype is not None:
            raise ValueError(f"it has dtype {dtype}, and not numbers")
        start = stream.tell()
        expected = start + math.prod(shape) * dtype.itemsize
        if any(n < 0 for n in shape) or expected != self._infos[f"{name}.npy"].file_size:
            raise ValueError(f"an array of shape {shape} and dtype {dtype} would have {expected} bytes")
        if "dtype" in about:
            held = dtype_named(about["dtype"]) if dtype.kind == "V" else np.dtype(about["dtype"])
            if tuple(about.get("shape", ())) != shape or held.itemsize != dtype.itemsize or (
                dtype.kind != "V" and held != dtype
            ):  # fmt: skip
                raise ValueError("its header and its comment differ")
            dtype = held
        return Header(tuple(shape), dtype, is_fortran, start)

    def array(self, name: str) -> Any:
        """Read an array."""
        import io

        if f"{name}.npy" not in self._infos:
            self.refuse("it is missing", name)
        about = self.comment(name)
        with self.checked(name):
            data = self._bytes(f"{name}.npy")
            with io.BytesIO(memoryview(data)[: 1 << 16]) as stream:
                shape, dtype, is_fortran, start = self._header(name, stream, about)
            if not math.prod(shape):
                return np.empty(shape, dtype)
            flat = np.frombuffer(data, dtype, offset=start)
            return flat.reshape(shape[::-1]).T if is_fortran else flat.reshape(shape)
