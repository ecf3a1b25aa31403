"""`.safetensors` files: written and read by the library safetensors, with every entry checked before one is read.

The file begins with the length of its header (8 bytes, little-endian), and the header, a JSON object: by name the
dtype, the shape and the place of each array. The arrays follow without a gap. `save` adds the entry "ringtape" to the
texts of "__metadata__": by name what a comment of an `.npz` archive has (see `archive`), the name in the module,
whether the matrix is transposed, and the checksum of the array's bytes. The entry "ringtape.digest" names the checksum
and has a digest of all else in the header, which does not depend on the order or the spaces of the JSON. So a changed
bit is found, wherever it is; that a file has one of these entries without the other is found, too. The library is an
optional dependency, imported here alone.

Source: https://github.com/huggingface/safetensors, "Format".
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from ..arrays.device import dtype_named
from ..digests import CHECKSUMS, blake2b, checksum_class, usual_checksum
from ..errors import DependencyError, DtypeError, FileError, FileWarning, warn
from .archive import CheckedFile, Header, json_of

__all__ = [
    "SeveralWeights", "Weights", "checksum_of", "is_index", "is_weights", "library", "noted", "write_weights",
]  # fmt: skip

_DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "C64": "complex64", "BOOL": "bool",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8",
    "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8",
}  # fmt: skip
_LONGEST_HEADER = 1 << 25  # bytes, six times as many as Python objects; that of 100,000 arrays has about 1 << 23
_OWN, _DIGEST = "ringtape", "ringtape.digest"
_WORDS = {name: word for word, name in _DTYPES.items()}


def library(caller: str) -> Any:
    """The package safetensors.

    Raises
    ------
    DependencyError
        It is not installed, or is older than 0.8.
    """
    try:
        import safetensors.numpy
    except ImportError as error:
        raise DependencyError(
            f"{caller} needs safetensors, which cannot be imported ({error})\n  fix: pip install 'ringtape[checkpoint]'"
        ) from error
    if not hasattr(safetensors, "TensorSpec"):  # whose writer copies no array, and whose reader maps no file
        raise DependencyError(
            f"{caller} needs safetensors 0.8 or newer; {safetensors.__version__} is installed\n"
            "  fix: pip install -U 'ringtape[checkpoint]'"
        )
    return safetensors


def is_weights(path: str | bytes, begin: bytes = b"") -> bool:
    """Whether a file is a `.safetensors` file, by its name and its first bytes. An archive under that name is none."""
    is_named = os.fsdecode(path).endswith(".safetensors")
    return not begin.startswith(b"PK\3\4") and (is_named or begin[8:9] == b"{")


def is_index(path: str | bytes) -> bool:
    """Whether a file is the index of several `.safetensors` files, by its name."""
    return os.fsdecode(path).endswith(".safetensors.index.json")


# -- writing -----------------------------------------------------------------------------------------------------------
def write_weights(
    path: str, caller: str, arrays: dict[str, Any], comments: Mapping[str, Mapping[str, Any]],
    metadata: Mapping[str, str],
) -> None:  # fmt: skip
    """Write arrays by name to a file, with comments. Arrays are taken out of `arrays`, one by one.

    Raises
    ------
    DtypeError
        The format has no such dtype.
    FileError
        A name is reserved, or the library could not write the file.
    """
    made = library(caller)
    written: dict[str, Any] = {}
    while arrays:
        name = next(iter(arrays))
        array = np.asarray(arrays.pop(name))
        if array.dtype.name not in _WORDS:
            raise DtypeError(
                f"{caller}: {name} has dtype {array.dtype}, which .safetensors files do not have\n"
                "  fix: a name that ends in .npz"
            )
        if name == "__metadata__":
            raise FileError(f"{caller}: an array has the name '__metadata__', which the format reserves")
        # The library writes the memory as it lies: that of a transpose would be scrambled without a word.
        written[name] = np.asarray(array, array.dtype.newbyteorder("<"), order="C")
    checksum = usual_checksum()
    known = {name: {**comments.get(name, {}), "digest": checksum_of(x, checksum)} for name, x in written.items()}
    described = [(name, _WORDS[x.dtype.name], x.shape) for name, x in written.items()]
    try:
        made.numpy.save_file(written, path, noted(metadata, known, described, checksum))
    except (made.SafetensorError, UnicodeError) as error:  # a name may have half of a surrogate pair
        raise FileError(f"{caller}: {error}") from error


def noted(
    metadata: Mapping[str, str], comments: Mapping[str, Any], entries: Iterable[tuple[str, str, Sequence[int]]],
    checksum: str,
) -> dict[str, str]:  # fmt: skip
    """The texts of "__metadata__" of a file with these entries: name, dtype and shape.

    Parameters
    ----------
    metadata : mapping
        Other texts.
    comments : mapping
        By name, which has the checksum of the array as "digest".
    entries : iterable
    checksum : str
        The name of the checksum.
    """
    texts = {**metadata, _OWN: json.dumps(comments), _DIGEST: checksum}
    return {**texts, _DIGEST: f"{checksum} {_digest_of(entries, texts)}"}


def _digest_of(entries: Iterable[tuple[str, str, Sequence[int]]], texts: Mapping[str, str]) -> str:
    """The digest of what a header says, where the entry of the digest names the checksum alone.

    Without the places of the arrays: that they fill the file, and have their checksums, tells whether they are right.
    """
    content = [sorted([name, word, *shape] for name, word, shape in entries), sorted(texts.items())]
    return blake2b(json.dumps(content).encode(), digest_size=8).hexdigest()


def checksum_of(array: Any, name: str) -> str:
    """The checksum of the bytes of a contiguous array."""
    make = checksum_class(name)
    assert make is not None
    found = make()
    found.update(array.reshape(-1).view(np.uint8))
    return str(found.hexdigest())


# -- reading -----------------------------------------------------------------------------------------------------------
class _Entry(NamedTuple):
    header: Header
    end: int
    word: str


def _entry(value: Mapping[str, Any]) -> _Entry:
    """The description of an array in a header, checked for itself."""
    word, shape, (start, end) = value["dtype"], value["shape"], value["data_offsets"]
    if not all(type(n) is int and 0 <= n < 1 << 63 for n in (start, end, *shape)) or len(shape) > 64:
        raise ValueError(f"it has shape {shape} and offsets {start}, {end}")
    if word not in _DTYPES:
        raise ValueError(f"it has dtype {word}, of which NumPy has none")
    dtype = dtype_named(_DTYPES[word])
    if start + math.prod(shape) * dtype.itemsize != end:
        raise ValueError(f"an array of shape {tuple(shape)} and dtype {dtype} would not have {end - start} bytes")
    return _Entry(Header(tuple(shape), dtype, False, start), end, word)


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object as a dict. ValueError if a name is there twice, of which a dict would have the last one."""
    made: dict[str, Any] = {}
    for name, value in pairs:
        if name in made:
            raise ValueError(f"it has {name!r} twice")
        made[name] = value
    return made


class Weights(CheckedFile):
    """A `.safetensors` file that is read.

    Parameters
    ----------
    file : file
    path : str or path
        Of the same file, by which the library opens it.
    caller : str
        The call, for messages: what it reads.

    Attributes
    ----------
    names : list of str
        Of the arrays, in the order of their places.
    structure : None
        It has arrays only.
    is_own : bool
        Whether ringtape has written it.
    checksum : str
        The name of the checksum that it has of each array; "" if it has none, as files of other programs.

    Raises
    ------
    FileError
        It is no such file, or it is damaged. The methods raise it, too.
    """

    structure = None

    def __init__(self, file: BinaryIO, path: Any, caller: str):
        super().__init__(caller)
        with self.checked("its header"):
            size, length = file.seek(0, os.SEEK_END), 0
            file.seek(0)
            if size >= 8:
                length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= size - 8:
                self.refuse(
                    f"it is {'empty' if not size else 'no .safetensors file, or is truncated'}: it has {size} bytes, "
                    f"and its header would have {length}"
                )
            if length > _LONGEST_HEADER:
                self.refuse(f"its header has {length} bytes; needed: at most {_LONGEST_HEADER}")
            found = json_of(file.read(length).decode(), _without_repetition)
            if not isinstance(found, dict):
                raise ValueError("it is no JSON object")
        self._path = os.fsdecode(path)
        self._reader: Any = None
        self._is_told = False
        self._entries: dict[str, _Entry] = {}
        self._comments: dict[str, Any] = {}
        self.is_own, self.checksum = False, ""
        texts: Any = {}
        for name, value in found.items():
            with self.checked(name):
                if name == "__metadata__":
                    self._read_metadata(texts := value)
                else:
                    self._entries[name] = _entry(value)
        self._check_places(size - 8 - length)
        self._check_digest(texts)
        self.names = list(self._entries)

    def _read_metadata(self, texts: Mapping[str, Any]) -> None:
        if not all(isinstance(x, str) for x in texts.values()):
            raise ValueError("it has values that are no texts")
        if _OWN in texts:
            self._comments, self.is_own = dict(json_of(texts[_OWN])), True
            for held in self._comments.values():
                if not isinstance(held, dict) or not all(isinstance(held.get(key, {}), dict) for key in
                                                         ("layout", "places")):  # fmt: skip
                    raise ValueError("its comment is no JSON object of save")

    def _check_places(self, size: int) -> None:
        """Raise FileError unless the arrays fill the rest of the file, of `size` bytes, without gap and overlap."""
        self._entries = dict(sorted(self._entries.items(), key=lambda each: (each[1].header.start, each[1].end)))
        at = 0
        for name, (header, end, _) in self._entries.items():
            if header.start != at:
                fault = "overlaps the array before it" if header.start < at else "leaves a gap"
                self.refuse(f"it begins at byte {header.start} of the arrays and {fault}; needed: {at}", name)
            if end > size:
                self.refuse(f"it ends at byte {end} of the arrays, of which the file has {size}", name)
            at = end
        if at != size:
            self.refuse(f"its arrays have {at} bytes, and the file has {size} for them")

    def _check_digest(self, texts: Mapping[str, str]) -> None:
        """Raise FileError if the header is not the one that was written."""
        digests = [isinstance(each.get("digest"), str) for each in self._comments.values()]
        if _DIGEST not in texts and not any(digests):
            return  # of another program, or of a version of ringtape without digests
        checksum, _, digest = texts.get(_DIGEST, "").partition(" ")
        entries = [(name, each.word, each.header.shape) for name, each in self._entries.items()]
        if _OWN not in texts or digest != _digest_of(entries, {**texts, _DIGEST: checksum}) or not (
            self._entries.keys() == self._comments.keys() and all(digests)
        ):  # fmt: skip
            self._refuse_change("its header")
        if checksum not in CHECKSUMS:
            self.refuse(f"its checksums are {checksum!r}; known are {' and '.join(CHECKSUMS)}", "its header")
        self.checksum = checksum

    def _refuse_change(self, entry: str) -> None:
        self.refuse(
            "it is not what was saved, by the digest in the file: the file was damaged, or another program has changed "
            "it and kept the notes of ringtape\n"
            "  fix: the file again, from where it is whole\n"
            "  or:  safetensors.numpy.save_file(safetensors.numpy.load_file(path), path), if these values are meant: a "
            "file without digests, for which nn.load takes names=", entry,
        )  # fmt: skip

    def comment(self, name: str) -> dict[str, Any]:
        """The notes of `save` about an entry: {} in files of others."""
        found: dict[str, Any] = self._comments.get(name, {})
        return found

    def header(self, name: str) -> Header:
        """The description of an array, without the array."""
        return self._entries[name].header

    def array(self, name: str) -> Any:
        """Read an array, and compare its checksum, if the file has one."""
        if name not in self._entries:
            self.refuse("it is missing", name)
        header, made = self._entries[name].header, library(self.caller)
        with self.checked(name):
            if self._reader is None:
                # It reads: a map of a file that is truncated meanwhile would end the process.
                self._reader = made.safe_open(self._path, framework="np", backend="pread")
            found = self._reader.get_tensor(name)
            if found.shape != header.shape or found.dtype != header.dtype:
                raise ValueError("it was replaced while it was read")
            if self.checksum:
                self._check_sum(name, found)
            return found if found.flags.writeable else found.copy()

    def _check_sum(self, name: str, array: Any) -> None:
        if checksum_class(self.checksum) is None:
            if not self._is_told:
                self._is_told = True
                warn(
                    f"{self.caller}: the arrays are not compared with their digests, which are those of xxhash: it is "
                    "not installed\n  fix: pip install 'ringtape[checkpoint]'", FileWarning,
                )  # fmt: skip
        elif checksum_of(array, self.checksum) != self._comments[name]["digest"]:
            self._refuse_change(name)



class SeveralWeights(CheckedFile):
    """Several `.safetensors` files that have the arrays of one module, by their index: a JSON object as other programs
    write it for large models, whose "weight_map" has by name of an array the file beside it.

    Parameters
    ----------
    file : file
        The index.
    path : str or path
    caller : str

    Attributes
    ----------
    names, structure, is_own, checksum
        As of `Weights`, of all files together.

    Raises
    ------
    FileError
        It is no index, names a file elsewhere, or the files have other arrays.
    """

    structure = None

    def __init__(self, file: BinaryIO, path: Any, caller: str):
        super().__init__(caller)
        with self.checked("its index"):
            places = json_of(file.read(_LONGEST_HEADER).decode(), _without_repetition)["weight_map"]
            if not isinstance(places, dict) or not places:
                raise ValueError("its weight_map has no arrays")
        folder = os.path.dirname(os.fsdecode(path))
        self._parts: dict[str, Weights] = {}
        for name, where in places.items():
            if not isinstance(where, str) or os.path.basename(where) != where or not is_weights(where):
                self.refuse(f"it is said to be in {where!r}; needed: the name of a .safetensors file beside the index",
                            name)  # fmt: skip
            if where not in self._parts:
                at = os.path.join(folder, where)
                if not os.path.isfile(at):
                    self.refuse(f"it is said to be in {where!r}, which is no file", name)
                with open(at, "rb") as part:  # of which the header is read here, and the library opens it again
                    self._parts[where] = Weights(part, at, f"{caller}, {where}")
        self._places: dict[str, Weights] = {name: self._parts[where] for name, where in places.items()}
        self.names = [name for each in self._parts.values() for name in each.names]
        for name in {*places, *self.names}:
            if name not in places or name not in self._places[name].names:
                self.refuse("the index and the files do not both have it, in one place", name)
        if len(self.names) > len(places):
            self.refuse("two of the files have the same array")
        self.is_own = all(each.is_own for each in self._parts.values())
        kinds = {each.checksum for each in self._parts.values()}
        self.checksum = kinds.pop() if len(kinds) == 1 else ""

    def comment(self, name: str) -> dict[str, Any]:
        """The notes of `save` about an entry."""
        return self._places[name].comment(name)

    def header(self, name: str) -> Header:
        """The description of an array, without the array."""
        return self._places[name].header(name)

    def array(self, name: str) -> Any:
        """Read an array, and compare its checksum, if its file has one."""
        if name not in self._places:
            self.refuse("it is missing", name)
        return self._places[name].array(name)
