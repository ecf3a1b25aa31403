"""The manifest of a checkpoint: a JSON file that says which bytes of which file have which part of which value.

It is written last. Its own checksum stands around it, so a manifest that is cut off or changed is no manifest. All that
it says is checked when it is read, before anything is read or memory is taken because of it.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from autograd.arrays.device import dtype_named
from autograd.digests import blake2b
from autograd.errors import CheckpointError, DamagedCheckpoint, printable
from autograd.nn.archive import json_of

from .boxes import Box, elements, meet, whole_box

__all__ = ["FORMAT", "Manifest", "NAME", "Stretch", "Value"]

NAME = "manifest.json"
FORMAT = "ringtape checkpoint 1"
_LARGEST = 1 << 31  # bytes of a manifest
_MOST_DIMENSIONS = 64


@dataclass(frozen=True)
class Stretch:
    """A piece of a value in a file.

    Attributes
    ----------
    file : int
        The place in `Manifest.files`.
    begin, end : int
        Bytes in the file.
    box : Box
        The part of the value that they are, in C order.
    checksum : str
        Of these bytes.
    """

    file: int
    begin: int
    end: int
    box: Box
    checksum: str


@dataclass(frozen=True)
class Value:
    """An array of a checkpoint.

    Attributes
    ----------
    shape : tuple of int
        Of the whole value.
    dtype : str
    layout : dict of str to str
        By axis, the label that it had.
    place : dict of str to int
        By axis on which each rank had a value of its own, the coordinate of the rank whose value this is.
    pieces : tuple of Stretch
        Which together have each element once.
    """

    shape: tuple[int, ...]
    dtype: str
    layout: dict[str, str]
    place: dict[str, int]
    pieces: tuple[Stretch, ...]

    @property
    def numpy_dtype(self) -> Any:
        """The dtype of NumPy, or of ml_dtypes."""
        return _dtype(self.dtype)


@dataclass
class Manifest:
    """What a checkpoint has.

    Attributes
    ----------
    step : int
    tree : dict
        See `tree`.
    values : dict of str to Value
        By path.
    files : list of (str, int)
        The names and sizes of the files.
    mesh : dict of str to int
        The axes and sizes of the mesh; empty without one.
    classes : list of int
        The class of each rank; see `tree`.
    checksum : str
        The name of the checksum of the pieces.
    about : dict
        The time, versions of libraries and what else is not needed to load it.
    """

    step: int
    tree: dict[str, Any]
    values: dict[str, Value]
    files: list[tuple[str, int]]
    mesh: dict[str, int]
    classes: list[int]
    checksum: str
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(size for _, size in self.files)

    def text(self) -> str:
        """The JSON text, in which each value is a line."""
        values = ",\n".join(
            f"  {json.dumps(path)}: " + json.dumps({
                "shape": v.shape, "dtype": v.dtype, "layout": v.layout, **({"place": v.place} if v.place else {}),
                "pieces": [[p.file, p.begin, p.end, [list(x) for x in p.box], p.checksum] for p in v.pieces],
            }) for path, v in self.values.items()
        )  # fmt: skip
        rest = {
            "format": FORMAT, "step": self.step, "mesh": self.mesh, "classes": self.classes,
            "checksum": self.checksum, "about": self.about, "files": self.files, "tree": self.tree,
        }  # fmt: skip
        body = json.dumps(rest)[:-1] + ', "values": {\n' + values + "\n}}"
        return f'{{"digest": "{_digest(body)}", "manifest":\n{body}\n}}\n'

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read and check the manifest in a folder.

        Raises
        ------
        DamagedCheckpoint
            There is none, or it is damaged.
        """
        path = folder / NAME
        try:
            size = os.stat(path).st_size
            if size > _LARGEST:
                refuse(folder, NAME, f"it has {size} bytes; a manifest has at most {_LARGEST}")
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise DamagedCheckpoint(f"checkpoint {folder}: there is no {NAME}, so it was not finished") from None
        except (OSError, UnicodeDecodeError) as error:
            raise DamagedCheckpoint(f"checkpoint {folder}, {NAME}: it cannot be read: {error}") from None
        head, _, body = text.partition('"manifest":\n')
        body = body.removesuffix("\n}\n")
        if head != f'{{"digest": "{_digest(body)}", ':
            refuse(folder, NAME, "its digest is not that of its content: it is cut off, was changed, or is none")
        try:
            return cls._checked(json_of(body), folder)
        except CheckpointError:
            raise
        except Exception as error:  # a manifest that another program has written, with a right digest
            text = printable(f"{type(error).__name__}: {error}")[:200]
            raise DamagedCheckpoint(f"checkpoint {folder}, {NAME}: it is no manifest: {text}") from None

    @classmethod
    def _checked(cls, code: Any, folder: Path) -> Manifest:
        if code["format"] != FORMAT:
            refuse(folder, NAME, f"its format is {code['format']!r}; this version reads {FORMAT!r}")
        files = [(_file_name(name, folder), _number(size)) for name, size in code["files"]]
        if len({name for name, _ in files}) < len(files):
            refuse(folder, NAME, "it has a file twice")
        values = {path: _value(path, each, files, folder) for path, each in code["values"].items()}
        _refuse_overlaps(values, files, folder)
        mesh = {str(axis): _number(n) for axis, n in code["mesh"].items()}
        if not all(isinstance(code[name], kind) for name, kind in (("tree", dict), ("about", dict), ("checksum", str))):
            refuse(folder, NAME, "its entries are of other types than those of a manifest")
        classes = [_number(k) for k in code["classes"]]
        return cls(_number(code["step"]), code["tree"], values, files, mesh, classes, code["checksum"], code["about"])


def _digest(body: str) -> str:
    return blake2b(body.encode(), digest_size=16).hexdigest()


def refuse(folder: Any, entry: str, fault: str) -> Any:
    """Raise DamagedCheckpoint for an entry of a checkpoint."""
    raise DamagedCheckpoint(f"checkpoint {folder}, {printable(entry)}: {fault}")


def _number(x: Any) -> int:
    if isinstance(x, bool) or not isinstance(x, int) or not 0 <= x < 1 << 62:
        raise ValueError(f"{x!r} in the place of a number")
    return x


def _file_name(name: Any, folder: Path) -> str:
    if not isinstance(name, str) or name != os.path.basename(name) or name in ("", ".", "..", NAME) or "\0" in name:
        refuse(folder, NAME, f"it names the file {name!r}; needed: the name of a file in its own directory")
    return str(name)


def _dtype(name: str) -> Any:
    try:
        return np.dtype(name)
    except TypeError:
        return dtype_named(name)


def _value(path: str, code: Mapping[str, Any], files: list[tuple[str, int]], folder: Path) -> Value:
    shape = tuple(_number(n) for n in code["shape"])
    dtype = _dtype(code["dtype"])
    if len(shape) > _MOST_DIMENSIONS or dtype.hasobject or dtype.fields is not None or not dtype.itemsize:
        refuse(folder, path, f"it has shape {shape} and dtype {code['dtype']!r}, which no array of a checkpoint has")
    pieces = []
    for file, begin, end, box, checksum in code["pieces"]:
        part = tuple((_number(a), _number(b)) for a, b in box)
        if not 0 <= _number(file) < len(files) or not _number(begin) <= _number(end) <= files[file][1]:
            refuse(folder, path, f"a piece has bytes {begin} to {end} of file {file}; the files have {files}"[:400])
        if len(part) != len(shape) or not all(a <= b <= n for (a, b), n in zip(part, shape, strict=True)):
            refuse(folder, path, f"a piece is the box {part} of a value of shape {shape}")
        if elements(part) * dtype.itemsize != end - begin:
            refuse(folder, path, f"a piece of {elements(part)} elements of {dtype} has {end - begin} bytes")
        pieces.append(Stretch(file, begin, end, part, str(checksum)))
    found = Value(shape, str(code["dtype"]), dict(code["layout"]), dict(code.get("place", {})), tuple(pieces))
    if sum(elements(p.box) for p in pieces) != elements(whole_box(shape)):
        missing = elements(whole_box(shape)) - sum(elements(p.box) for p in pieces)
        fault = f"{missing} elements are missing" if missing > 0 else f"{-missing} elements are there twice"
        refuse(folder, path, f"its pieces are not the whole value of shape {shape}: {fault}")
    refuse_meeting(pieces, folder, path)
    return found


def refuse_meeting(pieces: Any, folder: Any, path: str) -> None:
    """Raise CheckpointError if two pieces of a value have an element in common. They are sorted by their first rows."""
    rows = sorted(pieces, key=lambda p: p.box)
    open_: list[Stretch] = []
    for p in rows:
        begin = p.box[0][0] if p.box else 0
        open_ = [q for q in open_ if not p.box or q.box[0][1] > begin]
        for q in open_:
            if meet(p.box, q.box) is not None:
                refuse(folder, path, f"its pieces {q.box} and {p.box} have elements in common")
        if math.prod(b - a for a, b in p.box):
            open_.append(p)


def _refuse_overlaps(values: Mapping[str, Value], files: list[tuple[str, int]], folder: Path) -> None:
    """Raise CheckpointError if two pieces share bytes of a file."""
    of_files: list[list[tuple[int, int, str]]] = [[] for _ in files]
    for path, value in values.items():
        for p in value.pieces:
            if p.begin < p.end:
                of_files[p.file].append((p.begin, p.end, path))
    for (name, _), stretches in zip(files, of_files, strict=True):
        stretches.sort()
        for (_, end, path), (begin, _, other) in zip(stretches, stretches[1:], strict=False):
            if begin < end:
                refuse(folder, name, f"bytes {begin} to {end} belong to {path!r} and to {other!r}")
