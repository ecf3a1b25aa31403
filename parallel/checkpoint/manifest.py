"""The manifest of a checkpoint: a JSON file that says which bytes of which file have which part of which value.

It is written last. Its own checksum stands around it, so a manifest that is cut off or changed is no manifest. All that
it says is checked when it is read, before anything is read or memory is taken because of it.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, repeat
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np

from autograd.arrays.device import dtype_named
from autograd.digests import blake2b
from autograd.errors import CheckpointError, DamagedCheckpoint, printable

from .boxes import Box, elements, meet
from .disk import DTYPES, dtype_text, opened
from .pieces import Pieces, Stretch, are_apart, numbers_of

__all__ = [
    "DEEPEST", "FORMAT", "Manifest", "NAME", "Value", "entry_name", "place_suffix", "refuse", "refuse_meeting",
]  # fmt: skip

NAME = "manifest.json"
FORMAT = "ringtape checkpoint 1"
_LARGEST = 1 << 31  # bytes of a manifest
_MOST_DIMENSIONS = 64
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}")


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
    pieces : sequence of Stretch
        Which together have each element once.
    """

    shape: tuple[int, ...]
    dtype: str
    layout: dict[str, str]
    place: dict[str, int]
    pieces: Sequence[Stretch]

    @property
    def numpy_dtype(self) -> Any:
        """The dtype of NumPy, or of ml_dtypes."""
        return DTYPES[self.dtype] if self.dtype in DTYPES else _dtype(self.dtype)

    @property
    def file_dtype(self) -> Any:
        """The same with the order of bytes of a file."""
        found = self.numpy_dtype
        return found if found.kind == "V" else found.newbyteorder("<")


@dataclass
class Manifest:
    """The content of a checkpoint.

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
        return sum([size for _, size in self.files])

    def head(self) -> dict[str, Any]:
        """The content without values, as JSON has it."""
        return {
            "format": FORMAT, "step": self.step, "mesh": self.mesh, "classes": self.classes,
            "checksum": self.checksum, "about": self.about, "files": self.files, "tree": self.tree,
        }  # fmt: skip

    def text(self) -> str:
        """The JSON text, in which each value is a line."""
        values = ",\n".join([
            "  " + _text_of({path: {
                "shape": v.shape, "dtype": v.dtype, "layout": v.layout, **({"place": v.place} if v.place else {}),
                "pieces": list(map(_LINE, v.pieces)),
            }})[1:-1] for path, v in self.values.items()
        ])  # fmt: skip
        body = _text_of(self.head())[:-1] + ', "values": {\n' + values + "\n}}"
        return f'{{"digest": "{_digest(body.encode())}", "manifest":\n{body}\n}}\n'

    @classmethod
    def read(cls, folder: str) -> Manifest:
        """Read and check the manifest in a folder.

        Raises
        ------
        DamagedCheckpoint
            There is none, or it is damaged.
        """
        if not os.path.lexists(f"{folder}/{NAME}"):
            raise DamagedCheckpoint(f"checkpoint {folder}: there is no {NAME}, so it was not finished")
        number, size = opened(folder, NAME)
        with open(number, "rb") as file:
            if size > _LARGEST:
                refuse(folder, NAME, f"it has {size} bytes; a manifest has at most {_LARGEST}")
            try:
                text = file.read(size)
            except OSError as error:
                raise DamagedCheckpoint(f"checkpoint {folder}, {NAME}: it cannot be read: {error.strerror}") from None
        return cls.of_text(text, folder)

    @classmethod
    def of_text(cls, text: bytes, folder: str) -> Manifest:
        """Check the text of a manifest, of the checkpoint in a folder."""
        head = text[: max(text.find(_BEFORE), 0)]
        body = memoryview(text)[len(head) + len(_BEFORE) : -len(_AFTER)]
        if not text.endswith(_AFTER) or head != b'{"digest": "%s", ' % _digest(body).encode():
            refuse(folder, NAME, "its digest is not that of its content: it is cut off, was changed, or is none")
        try:
            return cls.checked(*_parsed(body), folder)
        except CheckpointError:
            raise
        except Exception as error:  # a manifest that another program has written, with a right digest
            fault = printable(f"{type(error).__name__}: {error}")[:200]
            raise DamagedCheckpoint(f"checkpoint {folder}, {NAME}: it is no manifest: {fault}") from None

    @classmethod
    def checked(cls, code: Any, lines: Iterable[tuple[str, Any]], folder: str) -> Manifest:
        """The manifest of a `head`, and of values by path, as JSON has them.

        Raises
        ------
        DamagedCheckpoint, or an error of Python
            They are none.
        """
        if code["format"] != FORMAT:
            refuse(folder, NAME, f"its format is {code['format']!r}; this version reads {FORMAT!r}")
        files = [(_file_name(name, folder), size) for name, size in code["files"]]
        sizes = np.array(_numbers([size for _, size in files]), np.int64)
        if len(dict(files)) < len(files):
            refuse(folder, NAME, "it has a file twice")
        values: dict[str, Value] = {}
        for path, each in lines:  # some values at a time are there as JSON
            if path in values:
                raise ValueError("an object that has a key twice")
            values[path] = _value(path, each, files, sizes, folder)
        _refuse_overlaps(values, files, folder)
        step, mesh, tree, classes, about = itemgetter("step", "mesh", "tree", "classes", "about")(code)
        _require((dict, mesh), (dict, tree), (dict, about), (list, classes), (str, code["checksum"]))
        labels = [label for x in values.values() for label in x.layout.values()]
        sums = [p.checksum for x in values.values() if type(x.pieces) is tuple for p in x.pieces]
        _require(*zip(repeat(str), labels + sums))
        _numbers([step, *mesh.values(), *classes])
        if not classes or set(classes) != set(range(max(classes) + 1)):
            refuse(folder, NAME, "its classes of ranks are not numbered")
        known = {key.removesuffix(place_suffix(x.place)) if x.place else key for key, x in values.items()}
        _refuse_other_tree(tree, known, max(classes) + 1)
        return cls(step, tree, values, files, mesh, classes, code["checksum"], about)


_LINE = attrgetter("file", "begin", "end", "box", "checksum")  # of a piece
_BEFORE, _AFTER = b'"manifest":\n', b"\n}\n"  # around what the digest is of


def _digest(body: Any) -> str:
    return blake2b(body, digest_size=16).hexdigest()


def _parsed(body: memoryview) -> tuple[Any, Iterable[tuple[str, Any]]]:
    """The content of a manifest without its values, and these, read some at a time if each is a line.

    JSON that is read at once takes ten times the memory of its text.
    """
    text: Any = body.obj
    start = len(text) - len(_AFTER) - len(body)
    end = text.find(b"\n", start, start + len(body))  # there is no other one in what `Manifest.text` writes before
    has_lines = text.startswith(_VALUES, end - len(_VALUES)) and text.endswith(b"\n}}" + _AFTER)
    if end - len(_VALUES) < start or not has_lines:
        code = _json_of(bytes(body))
        _require((dict, code["values"]))
        return code, code["values"].items()

    def lines() -> Iterator[tuple[str, Any]]:
        at, last = end + 1, len(text) - len(_AFTER) - 3  # at the line break before "}}"
        while at < last:
            stop = text.find(b"\n", min(at + _AT_ONCE, last), last)
            stop = last if stop < 0 else stop
            yield from _json_of(b"{" + text[at : stop - (stop < last and text[stop - 1] == 44)] + b"}").items()
            at = stop + 1

    return _json_of(text[start : end - len(_VALUES)] + b"}"), lines()


_VALUES = b', "values": {'
_AT_ONCE = 1 << 16  # bytes of text; most manifests have fewer


def _json_of(text: bytes) -> Any:
    """The value of a JSON text, in which no object has a key twice."""
    try:
        return _DECODER.decode(text.decode())
    except RecursionError:
        raise ValueError("JSON that is nested too deeply") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object that has a key twice")
    return found


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"the number {text}")


_text_of = json.JSONEncoder().encode
_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_refuse_constant)


def refuse(folder: Any, entry: str, fault: str) -> Any:
    """Raise DamagedCheckpoint for an entry of a checkpoint."""
    raise DamagedCheckpoint(f"checkpoint {folder}, {printable(entry)[:200]}: {fault[:600]}")


def _numbers(given: Any) -> tuple[int, ...]:
    for x in given:
        if isinstance(x, bool) or not isinstance(x, int) or not 0 <= x < 1 << 62:
            raise ValueError(f"{x!r} in the place of a number")
    return tuple(given)


def _require(*given: tuple[type, Any]) -> None:
    for kind, x in given:
        if not isinstance(x, kind):
            raise ValueError(f"{x!r:.80} in the place of a {kind.__name__}")


def _file_name(name: Any, folder: str) -> str:
    if not isinstance(name, str) or _FILE.fullmatch(name) is None or name == NAME:
        refuse(folder, NAME, f"it names the file {name!r}; needed: the name of a file in its own directory")
    return str(name)


def _dtype(name: Any) -> Any:
    """The dtype of a name that `dtype_text` gives. NumPy takes many more for one."""
    if name.__class__ is str and name in DTYPES:
        return DTYPES[name]
    _require((str, name))
    try:
        found = np.dtype(name)
    except TypeError:
        found = dtype_named(name)
    if dtype_text(found) != name:
        raise ValueError(f"{name!r:.80} in the place of a dtype")
    return found


def _value(path: str, code: Mapping[str, Any], files: list[tuple[str, int]], sizes: Any, folder: str) -> Value:
    """A value of a manifest."""
    shape, dtype = _numbers(code["shape"]), _dtype(code["dtype"])
    extents = math.prod(filter(None, shape))
    if (
        len(shape) > _MOST_DIMENSIONS or extents * dtype.itemsize >= 1 << 62 or dtype.hasobject or not dtype.itemsize
        or dtype.fields is not None or dtype.subdtype is not None
    ):  # fmt: skip
        refuse(folder, path, f"it has shape {shape} and dtype {code['dtype']!r}, which no array of a checkpoint has")
    layout, place = code["layout"], code.get("place", {})
    _require((list, code["pieces"]), (dict, layout), (dict, place))
    pieces, held = _pieces(path, code["pieces"], shape, dtype, files, sizes, folder)
    if place and not (_numbers(place.values()) and path.endswith(place_suffix(place))):
        refuse(folder, path, f"it has the place {place}, which its name does not have")
    missing = math.prod(shape) - held // dtype.itemsize
    if missing:
        fault = f"{missing} elements are missing" if missing > 0 else f"{-missing} elements are there twice"
        refuse(folder, path, f"its pieces are not the whole value of shape {shape}: {fault}")
    if len(pieces) > 1 and not are_apart(pieces, shape):
        refuse_meeting(pieces, folder, path)
    return Value(shape, code["dtype"], layout, place, pieces)


_FEW = 3  # pieces, of which objects take no more memory than an array


def _pieces(
    path: str, code: list[Any], shape: tuple[int, ...], dtype: Any, files: list[tuple[str, int]], sizes: Any,
    folder: str,
) -> tuple[Sequence[Stretch], int]:  # fmt: skip
    """The pieces of a value, all at once, or one after another if there are few or one is wrong; and their bytes."""
    if len(code) > _FEW:
        with suppress(ValueError, TypeError, OverflowError):
            found = Pieces.of_code(code, len(shape))
            if found.are_right(shape, dtype.itemsize, sizes):
                return found, sum((found.numbers[:, 2] - found.numbers[:, 1]).tolist())
    pieces, held = [], 0
    for file, begin, end, box, checksum in code:
        part = tuple(map(tuple, box))
        _numbers([file, begin, end, *chain.from_iterable(part)])
        if file >= len(files) or not begin <= end <= files[file][1]:
            refuse(folder, path, f"a piece has bytes {begin} to {end} of file {file}; the files have {files}")
        fits, count = len(part) == len(shape), 1
        for (a, b), n in zip(part, shape, strict=False):
            fits, count = fits and a <= b <= n, count * (b - a)
        if not fits:
            refuse(folder, path, f"a piece is the box {part} of a value of shape {shape}")
        if count * dtype.itemsize != end - begin:
            refuse(folder, path, f"a piece of {count} elements of {dtype} has {end - begin} bytes")
        pieces.append(Stretch(file, begin, end, part, checksum))
        held += end - begin
    return tuple(pieces), held


_KINDS: dict[str, type] = {
    "dict": dict, "by": dict, "tuple": list, "ranks": list, "differs": list, "names": list, "float": str,
}  # fmt: skip
DEEPEST = 100
"""The most containers around a value of a tree."""


def _is_right(kind: str, content: Any, classes: int) -> bool:
    """Whether the content of a code is one that its kind can have."""
    if kind == "float":
        return content in ("nan", "inf", "-inf")
    if kind == "names":
        return all(isinstance(each, list) and all(isinstance(name, str) for name in each) for each in content)
    return kind not in ("ranks", "differs") or len(content) == classes or (kind == "ranks" and len(content) == 1)


def _refuse_other_tree(tree: Mapping[str, Any], paths: Set[str], classes: int) -> None:
    """Raise ValueError unless a tree is one that `encode` and `merged` can make.

    Parameters
    ----------
    tree : mapping
    paths : set of str
        Of the arrays, each of which may be at one place.
    classes : int
        The number of classes of ranks.
    """
    seen: set[str] = set()

    def visit(code: Any, where: str, depth: int) -> None:
        items: Any = code if isinstance(code, list) else []
        if depth > DEEPEST:
            raise ValueError(f"the tree of {where!r:.80} is nested too deeply")
        if isinstance(code, dict) and "value" in code:
            path = code["value"]
            if not isinstance(path, str) or path not in paths:
                raise ValueError(f"the tree of {where!r:.80} has the value {path!r:.80}, which is not there")
            if path in seen:
                raise ValueError(f"the tree has the value {path!r:.80} twice")
            seen.add(path)
        elif isinstance(code, dict):
            kind, items = next(iter(code.items()), ("", None))
            if len(code) != 1 or not isinstance(items, _KINDS.get(kind, ())) or not _is_right(kind, items, classes):
                raise ValueError(f"the tree of {where!r:.80} has {code!r:.80}")
            items = items.values() if isinstance(items, dict) else () if kind in ("names", "float") else items
        for each in items:
            visit(each, where, depth + 1)

    for name, code in tree.items():
        is_state = isinstance(code, dict) and len(code) == 1 and "state" in code
        visit(code["state"] if is_state else code, name, 0)


def place_suffix(place: Mapping[str, int]) -> str:
    """The end of the name of a value that is one of several.

    Examples
    --------
    >>> place_suffix({}), place_suffix({"dp": 2})
    ('', '@dp=2')
    """
    return "@" + ",".join(f"{axis}={k}" for axis, k in place.items()) if place else ""


def entry_name(key: str, shape: Sequence[int], box: Box) -> str:
    """The name of a piece in its data file: that of the value, and the box if it is not the whole.

    Examples
    --------
    >>> entry_name("model/weight", (4, 3), ((0, 4), (0, 3))), entry_name("model/weight", (4, 3), ((2, 4), (0, 3)))
    ('model/weight', 'model/weight[2:4, 0:3]')
    """
    is_whole = elements(box) == math.prod(shape)
    return key if is_whole else f"{key}[{', '.join(f'{a}:{b}' for a, b in box)}]"


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


def _refuse_overlaps(values: Mapping[str, Value], files: list[tuple[str, int]], folder: str) -> None:
    """Raise CheckpointError if two pieces share bytes of a file."""
    paths, places = [*values], [value.pieces for value in values.values()]
    numbers = numbers_of(*places)
    owners = np.arange(len(paths)).repeat(np.array([*map(len, places)], np.int64))
    order = np.lexsort((numbers[:, 2], numbers[:, 1], numbers[:, 0]))
    order = order[numbers[order, 1] < numbers[order, 2]]
    one, two = order[:-1], order[1:]
    (wrong,) = ((numbers[one, 0] == numbers[two, 0]) & (numbers[one, 2] > numbers[two, 1])).nonzero()
    if len(wrong):
        i, k = one[wrong[0]], two[wrong[0]]
        refuse(
            folder, files[numbers[i, 0]][0],
            f"bytes {numbers[k, 1]} to {numbers[i, 2]} belong to {paths[owners[i]]!r} and to {paths[owners[k]]!r}",
        )
