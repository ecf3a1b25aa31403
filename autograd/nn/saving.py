"""`save` and `load`: modules, optimizers, loaders and random state in one file, and `contents`, what a file holds.

A file is an ``.npz`` archive, which ``numpy.load`` reads. The comment of each entry (of the archive's directory) says
how the value was held when it was saved, and of which rank it is, if the ranks had values of their own. A file of
several objects has the entry "structure.json" with what is no array.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import parsing
from ..arrays.device import is_array, to_host
from ..engine.state import state
from ..engine.tensor import TENSORS
from ..engine.whole import sharded_axes
from ..errors import ArgumentError, DtypeError, LayoutError, RingtapeError, ShapeError, call_site, typed_errors
from ..layouts.layout import Layout, P, V
from .module import Module

__all__ = ["FileEntry", "contents", "load", "save"]

_STRUCTURE = "structure.json"
Places = dict[str, list[int]]
"""By axis on which a file has the values of one rank: its coordinate, and the number of ranks."""


@dataclass(frozen=True)
class FileEntry:
    """An array or another value of a file, as `contents` returns it.

    Attributes
    ----------
    shape : tuple of int
        The shape of the array in the file: that of the whole value, unless it is a part. Of a text, a list or a tuple
        its length; () for a number.
    dtype : numpy.dtype
        The object dtype, if it is no array.
    layout : dict of str to str
        By axis of the mesh, the label that the value had when it was saved; empty without a mesh.
    places : dict of str to (int, int)
        By axis on which the ranks had different values: the coordinate of the rank whose value this is, and the number
        of ranks.
    kind : str
        "array", or the name of the value's type, such as "float", "str" or "list".
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    layout: dict[str, str]
    places: dict[str, tuple[int, int]]
    kind: str = "array"

    @property
    def is_part(self) -> bool:
        """Whether it is the value of one of several ranks, so that the file has a part of the model only."""
        return any(size > 1 for _, size in self.places.values())

    def __repr__(self) -> str:
        if self.kind != "array":
            return self.kind + "".join(f" of length {n}" for n in self.shape)
        text = f"{self.dtype}[{', '.join(map(str, self.shape))}]"
        if self.is_part:
            return f"{text}, of the rank at {_shown(self.places)} alone"
        held = ", ".join(f"{axis}: {label}" for axis, label in self.layout.items())
        return f"{text}, whole" + (f", saved from {{{held}}}" if held else "")


@typed_errors
def save(objects: Any, path: str | os.PathLike[str]) -> None:
    """Write a module, or several objects with a ``state_dict``, to an ``.npz`` file.

    The file contains whole values, so it can be loaded on any number of ranks. Without a mesh, and for parameters that
    are equal on all ranks, any rank may call it alone. If a parameter is sharded, all ranks along its axes call it
    together: the parts are gathered, and the first rank that gives a path writes its file. Of a Varying parameter the
    file contains this rank's value, and its place on the mesh; each rank gives a path of its own. `contents` tells
    which is which.

    The file is written under another name and then renamed, so that an interrupted call leaves no partial file, and
    several ranks may write the same file.

    Parameters
    ----------
    objects : Module, or mapping
        By name, the objects: modules, optimizers, a `data.DataLoader`, the module `autograd.random`, or any other with
        ``state_dict`` and ``load_state_dict``; and plain values, made of numbers, texts, arrays, lists, tuples and
        dictionaries, which `load` returns.
    path : str or path
        The file. It is overwritten.

    Raises
    ------
    MeshError
        A value is sharded, and its mesh is not current.
    LayoutError
        A plain value is a Tensor that is an addend, a part, or another one on each rank.
    ArgumentError, DtypeError
        A plain value cannot be saved.
    RingtapeError
        Another rank could not write the file.

    Examples
    --------
    >>> import tempfile, os
    >>> from autograd import nn, optim, random
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model = nn.Linear(2, 1)
    ...     nn.save(model, os.path.join(folder, "model.npz"))
    ...     nn.load(model, os.path.join(folder, "model.npz"))
    ...     run = {"model": model, "optimizer": optim.Adam(model.parameters()), "random": random}
    ...     nn.save({**run, "best": 0.25}, os.path.join(folder, "run.npz"))
    ...     nn.load(run, os.path.join(folder, "run.npz"))
    {}
    {'best': 0.25}
    """
    target = os.fspath(path)
    arrays: dict[str, Any] = {}
    structure = None
    parts = objects if isinstance(objects, Mapping) else {"": objects}
    if isinstance(objects, Mapping):
        structure = {name: _encoded(_state_of(x), f"{name}", arrays) for name, x in _checked(objects).items()}
    else:
        arrays = dict(_module(objects).state_dict())
    comments = {each: _comment(layout) for name, x in parts.items() for each, layout in _named_layouts(name, x, arrays)}

    def write() -> None:
        _write(target, arrays, comments, structure)

    axes = {axis for x in parts.values() for layout in _layouts(x) for axis in sharded_axes(layout)}
    if not axes:
        write()
        return
    group = state.mesh.axis(tuple(axis for axis in state.mesh.names if axis in axes)).group
    error: OSError | None = None
    if group.exchange(os.fsencode(target)).index(os.fsencode(target)) == group.index:
        try:
            write()
        except OSError as failure:
            error = failure
    failures = group.exchange(b"" if error is None else str(error).encode())
    if error is not None:
        raise error
    for rank, text in zip(group.ranks, failures, strict=True):
        if text:
            raise RingtapeError(f"save: rank {rank} could not write the file: {text.decode()}" + call_site())


@typed_errors
def load(objects: Any, path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read what `save` wrote, on any number of ranks. Each rank takes its part.

    Parameters
    ----------
    objects : Module, or mapping
        A module with the parameters and buffers of the one that was saved, in any layout; or objects by name, all or
        some of those that were saved, which get their states in this order.
    path : str or path
        The file; on all ranks the same, except for Varying parameters.

    Returns
    -------
    dict
        The plain values of the file, by name.

    Raises
    ------
    LayoutError
        The file contains the Varying values of another place on the mesh, or of a mesh of another size.
    ShapeError
        The file has no object of a name. See also `Module.load_state_dict`.
    DtypeError, TapeError
        See `Module.load_state_dict`.
    """
    with np.load(path, allow_pickle=False) as file:
        structure = json.loads(file[_STRUCTURE]) if _STRUCTURE in file.files else None
        parts = _checked(objects) if isinstance(objects, Mapping) else {"": _module(objects)}
        _check_names(path, objects, structure)
        held = [
            json.loads(info.comment) for info in file.zip.infolist()
            if info.comment and (structure is None or info.filename.partition("/")[0] in parts)
        ]  # fmt: skip
        saved = {axis: at for each in held for axis, at in each["places"].items()}
        _check_places(path, saved, _places(parts.values()))
        if structure is None:
            with parsing.lock:
                whole = {name: file[name] for name in file.files}
            _module(objects).load_state_dict(whole)
            return {}
        with parsing.lock:
            states = {
                name: _decoded(x, file.__getitem__)
                for name, x in structure.items()
                if name in parts or not _is_state(x)
            }
    for name, x in parts.items():
        x.load_state_dict(states[name])
    return {name: x for name, x in states.items() if name not in parts}


@typed_errors
def contents(path: str | os.PathLike[str]) -> dict[str, FileEntry]:
    """Return what a file has that `save` wrote, by name: types, shapes, layouts, and which arrays are parts of a model.

    It reads no array. The arrays of a list or a tuple are listed beside it.

    Examples
    --------
    >>> import os, tempfile
    >>> from autograd import nn
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "model.npz")
    ...     nn.save(nn.Linear(2, 1), path)
    ...     nn.contents(path)
    {'weight': float32[2, 1], whole, 'bias': float32[1], whole}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "run.npz")
    ...     nn.save({"model": nn.Linear(2, 1), "best": 0.25, "name": "first"}, path)
    ...     list(nn.contents(path).items())[2:]
    [('best', float), ('name', str of length 5)]
    """
    import zipfile  # here: it loads 12 modules, which an import of autograd does not need

    found = {}
    values: dict[str, FileEntry] = {}
    with zipfile.ZipFile(path) as file:
        for info in file.infolist():
            if info.filename == _STRUCTURE:
                values = dict(_values_of(json.loads(file.read(info))))
                continue
            with file.open(info) as stream:
                version = np.lib.format.read_magic(stream)
                read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                with parsing.lock:
                    shape, _, dtype = read(stream)
            held = json.loads(info.comment or b"{}")
            places = {axis: (place, size) for axis, (place, size) in held.get("places", {}).items()}
            found[info.filename.removesuffix(".npy")] = FileEntry(shape, dtype, held.get("layout", {}), places)
    return found | values


def _values_of(items: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, FileEntry]]:
    """What a structure has besides arrays: plain values, by the names of their places."""
    for key, code in items.items():
        name, kind, length = f"{prefix}{key}", type(code).__name__, tuple[int, ...]()
        if isinstance(code, dict) and ("state" in code or "dict" in code):
            yield from _values_of(code["state"] if "state" in code else code["dict"], f"{name}/")
            continue
        if isinstance(code, dict):
            ((kind, code),) = list(code.items())[:1]  # "array", "tuple" or "float"
        if kind == "array":
            continue
        if kind in ("str", "list", "tuple"):
            length = (len(code),)
        yield name, FileEntry(length, np.dtype(object), {}, {}, "None" if code is None else kind)


# -- places on the mesh ------------------------------------------------------------------------------------------------
def _layouts(x: Any) -> Iterator[Layout]:
    """The layouts of the values of an object: of a module, or of the parameters of an optimizer."""
    if isinstance(x, Module):
        yield from (layout for _, _, layout in x._values() if layout is not None)
    elif isinstance(found := getattr(x, "parameters", None), list):
        yield from (p.layout for p in found if p.layout is not None)


def _named_layouts(name: str, x: Any, arrays: Iterable[str]) -> Iterator[tuple[str, Layout]]:
    """The layouts of arrays of an object, by their names in the file. Lists of an optimizer are by parameter."""
    if isinstance(x, Module):
        yield from ((f"{name}/{each}" if name else each, at) for each, _, at in x._values() if at is not None)
    elif isinstance(found := getattr(x, "parameters", None), list):
        for each in arrays:
            owner, _, place = each.partition("/")
            i = place.rpartition("/")[2]
            if owner == name and i.isdigit() and found[int(i)].layout is not None:
                yield each, found[int(i)].layout


def _places_of(layout: Layout) -> Places:
    grid = layout.grid
    return {
        axis: [int(place), size]
        for axis, size, place, label in zip(grid.names, grid.sizes, grid.place, layout.labels, strict=True)
        if label is V or label is P
    }


def _places(objects: Any) -> Places:
    """This rank's places along the axes on which it has values of its own."""
    return {axis: at for x in objects for layout in _layouts(x) for axis, at in _places_of(layout).items()}


def _comment(layout: Layout) -> str:
    return json.dumps({"layout": {axis: repr(label) for axis, label in layout.items()}, "places": _places_of(layout)})


def _shown(places: Mapping[str, Any]) -> str:
    return ", ".join(f"{axis}: {place} of {size}" for axis, (place, size) in places.items())


def _check_places(path: Any, saved: Places, mine: Places) -> None:
    """Raise LayoutError if a file has the values of one rank, and this rank is not the same one."""
    for axis, (place, size) in saved.items():
        here = mine.get(axis)
        if here == [place, size] or (here is None and size == 1):
            continue
        head = f"load({os.fspath(path)!r}): the file contains values of the rank at {_shown(saved)}; "
        if here is not None and here[1] == size:
            raise LayoutError(
                head + f"this rank is at {_shown(mine)}, and the module is Varying there: each rank has values of its "
                "own\n  fix: a path for each rank, in save and in load: nn.save(model, f'model.{rank}.npz')"
                + call_site()
            )
        now = f"has {here[1]}" if here is not None else "is none on which the module is Varying"
        raise LayoutError(
            head + f"axis {axis!r} had {size} ranks, each with values of its own, and now {now}\n"
            f"  fix: load it with the layouts and the number of ranks of the run that saved it, {axis}={size}\n"
            f"  or:  choose the values of one rank, module.load_state_dict(dict(numpy.load({os.fspath(path)!r})))"
            + call_site()
        )


# -- several objects in a file -----------------------------------------------------------------------------------------
def _module(x: Any) -> Module:
    if not isinstance(x, Module):
        raise ArgumentError(
            f"save, load: {type(x).__name__} was given; needed: a Module, or a mapping of names to objects\n"
            "  fix: nn.save({'optimizer': optimizer}, path)" + call_site()
        )
    return x


def _has_state(x: Any) -> bool:
    return hasattr(x, "state_dict") and hasattr(x, "load_state_dict")


def _checked(objects: Mapping[str, Any]) -> dict[str, Any]:
    for name in objects:
        if not isinstance(name, str) or not name or "/" in name:
            raise ArgumentError(f"save, load: the name {name!r} was given; needed: a text without '/'" + call_site())
    return dict(objects)


class _State(dict[str, Any]):
    """The `state_dict` of an object, as opposed to a plain dictionary."""


def _state_of(x: Any) -> Any:
    return _State(x.state_dict()) if _has_state(x) else x


def _is_state(code: Any) -> bool:
    return isinstance(code, dict) and "state" in code


def _encoded(x: Any, name: str, arrays: dict[str, Any]) -> Any:
    """A value as JSON. Arrays are put into `arrays`, under the names of their places."""
    if x.__class__ in TENSORS:
        for axis, label in () if x.layout is None else x.layout.items():
            if label.letter not in "RICD":
                raise LayoutError(
                    f"save: {name} is {x.layout!r}; axis {axis!r}: it is {label.word}, and the file would have what "
                    "this rank holds\n  fix: cc.all_reduce or cc.all_gather of it; or the object that has it"
                    + call_site()
                )
        x = x.array
    if not isinstance(x, np.ndarray | np.generic) and is_array(x):
        x = to_host(x)
    if isinstance(x, np.ndarray | np.generic):
        if x.dtype.hasobject:
            raise DtypeError(f"save: {name} has dtype {x.dtype}; needed: numbers or texts" + call_site())
        arrays[name] = x
        return {"array": name, "scalar": isinstance(x, np.generic)}
    if isinstance(x, Mapping):
        if not all(isinstance(key, str) for key in x):
            raise ArgumentError(f"save: {name} is a mapping with keys that are no texts" + call_site())
        kind = "state" if isinstance(x, _State) else "dict"
        return {kind: {key: _encoded(value, f"{name}/{key}", arrays) for key, value in x.items()}}
    if isinstance(x, list | tuple):
        items = [_encoded(value, f"{name}/{i}", arrays) for i, value in enumerate(x)]
        return items if isinstance(x, list) else {"tuple": items}
    if x is None or isinstance(x, bool | int | float | str):
        return x if not isinstance(x, float) or math.isfinite(x) else {"float": repr(x)}
    raise ArgumentError(
        f"save: {name} is a {type(x).__name__}; needed: an object with state_dict and load_state_dict, or numbers, "
        "texts, arrays, lists, tuples and dictionaries" + call_site()
    )


def _decoded(code: Any, array: Callable[[str], Any]) -> Any:
    if isinstance(code, list):
        return [_decoded(x, array) for x in code]
    if not isinstance(code, dict):
        return code
    if "array" in code:
        return array(code["array"])[()] if code["scalar"] else array(code["array"])
    if "tuple" in code:
        return tuple(_decoded(x, array) for x in code["tuple"])
    if "float" in code:
        return float(code["float"])
    ((_, items),) = code.items()
    return {key: _decoded(x, array) for key, x in items.items()}


def _check_names(path: Any, objects: Any, structure: dict[str, Any] | None) -> None:
    """Raise ShapeError unless the file has a state for each object."""
    has = [] if structure is None else [name for name, x in structure.items() if _is_state(x)]
    if isinstance(objects, Mapping):
        missing = [name for name in objects if name not in has]
        if missing:
            raise ShapeError(
                f"load({os.fspath(path)!r}): the file has the states of {has or 'one module'}; missing: {missing}"
                + ("\n  fix: nn.load(model, path)" if structure is None else "") + call_site()
            )  # fmt: skip
    elif structure is not None:
        raise ShapeError(
            f"load({os.fspath(path)!r}): the file has the states of {has}; a {type(objects).__name__} was given\n"
            f"  fix: nn.load({{{(has or ['model'])[0]!r}: model}}, path)" + call_site()
        )


def _write(target: Any, arrays: dict[str, Any], comments: dict[str, str], structure: Any) -> None:
    import zipfile

    # A name of its own: ranks may be threads of a process, or processes of many hosts.
    part = f"{os.fsdecode(target)}.{os.urandom(16).hex()}.part"
    try:
        with zipfile.ZipFile(part, "w", allowZip64=True) as file:
            if structure is not None:
                file.writestr(_STRUCTURE, json.dumps(structure))
            for name, array in arrays.items():
                info = zipfile.ZipInfo(f"{name}.npy")
                info.comment = comments.get(name, "").encode()
                with file.open(info, "w", force_zip64=True) as stream:
                    np.lib.format.write_array(stream, np.asanyarray(array), allow_pickle=False)
        os.replace(part, target)
    finally:
        if os.path.exists(part):
            os.remove(part)
