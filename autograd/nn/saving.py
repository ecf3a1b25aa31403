"""`save` and `load`: modules, optimizers, loaders and random state in one file, and `contents`, what a file holds.

A file is an ``.npz`` archive (see `archive`), which ``numpy.load`` reads. The comment of each entry says how the value
was held when it was saved, and of which rank it is, if the ranks had values of their own. A file of several objects has
the entry "structure.json" with what is no array. So has that of a module to which objects with a state are attached.
If its name ends in ".safetensors", the file has that format (see `weights`) and the values of one module.
"""

from __future__ import annotations

import copy
import io
import math
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ..arrays.device import is_array, to_host
from ..arrays.plain import require_plain_array
from ..engine.state import state
from ..engine.tensor import TENSORS
from ..errors import (
    ArgumentError,
    FileError,
    LayoutError,
    OptionError,
    RingtapeError,
    ShapeError,
    printable,
    typed_errors,
)
from ..files import replaced, replacing
from ..layouts.layout import Layout, P, V
from ..whole import OwnedState, sharded_axes
from .archive import Archive, write_archive
from .module import Module, tree_of
from .torch_names import TorchName, blocks_of, names_of, state_from, to_file
from .weights import SeveralWeights, Weights, is_index, is_weights, library, write_weights

__all__ = [
    "FileEntry", "attached_to", "contents", "load", "packed", "prepares", "restored_on_error", "save", "unpacked",
]  # fmt: skip

File = Archive | Weights | SeveralWeights
"""A file that is read."""

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
    checksum : str
        The name of the checksum that the file has of the array, such as "xxh3_64"; "" if it has none, so that changed
        bits cannot be seen, as in a ``.safetensors`` file of another program.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    layout: dict[str, str]
    places: dict[str, tuple[int, int]]
    kind: str = "array"
    checksum: str = ""

    @property
    def is_part(self) -> bool:
        """Whether it is the value of one of several ranks, so that the file has a part of the model only."""
        return any(size > 1 for _, size in self.places.values())

    def __repr__(self) -> str:
        if self.kind != "array":
            return self.kind + "".join(f" of length {n}" for n in self.shape)
        text = f"{self.dtype}[{', '.join(map(str, self.shape))}]"
        if self.is_part:
            return printable(f"{text}, of the rank at {_shown(self.places)} alone")
        held = ", ".join(f"{axis}: {label}" for axis, label in self.layout.items())
        unknown = "" if self.checksum else ", without digest"
        return printable(f"{text}, whole" + (f", saved from {{{held}}}" if held else "") + unknown)


@typed_errors
def save(objects: Any, path: str | os.PathLike[str], *, names: Any = None) -> None:
    """Write a module, or several objects with a ``state_dict``, to a file: ``.npz``, or of a module ``.safetensors``.

    The file contains whole values, so it can be loaded on any number of ranks. Without a mesh, and for parameters that
    are equal on all ranks, any rank may call it alone. If a parameter is sharded, all ranks along its axes call it
    together: the parts are gathered, and the first rank that gives a path writes its file. Of a Varying parameter the
    file contains this rank's value, and its place on the mesh; each rank gives a path of its own. `contents` tells
    which is which.

    A module is saved with what is attached to it: the memory of a `parallel.DataParallel` model's ``reduction``, such
    as residuals of a compression, is in the file. If there is such memory, all ranks of the mesh call it together.

    Both kinds of file have a checksum of each array and a digest of all else, which `load` compares: it refuses a file
    of which a bit has changed. A ``.safetensors`` file is a usual one for other programs, which do not compare them.

    The file is written under another name, to the disk, and then renamed, so that an interrupted call leaves no partial
    file, and several ranks may write the same file. A file that exists keeps its permissions, and a symbolic link
    stays one.

    Parameters
    ----------
    objects : Module, or mapping
        By name, the objects: modules, optimizers, a `data.DataLoader`, the module `autograd.random`, or any other with
        ``state_dict`` and ``load_state_dict``; and plain values, made of numbers, texts, arrays, lists, tuples and
        dictionaries, which `load` returns.
    path : str or path
        The file. It is overwritten. If its name ends in ".safetensors", it is written in that format, by the library
        safetensors. It then has the values of one module.
    names : {"ringtape", "torch"} or mapping, optional
        Of one module: the names of the entries, and which matrices are written as their transposes. "torch" is for a
        torch module, ``module.load_state_dict(safetensors.torch.load_file(path))``; a mapping is as `torch_names`
        returns it. By default the names are the module's, and the matrices as here.

    Raises
    ------
    MeshError
        A value is sharded, and its mesh is not current.
    LayoutError
        A plain value is a Tensor that is an addend, a part, or another one on each rank.
    ArgumentError, DtypeError
        A plain value cannot be saved, or not in a ``.safetensors`` file.
    OptionError
        `names` is given with several objects, or lacks a value of the module.
    DependencyError
        A ``.safetensors`` file is to be written, and the library is not installed.
    FileError
        The path is that of a directory or a device, or the file cannot be written, as on a full disk. A file that was
        there stays as it was.
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
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "model.safetensors")
    ...     nn.save(model, path, names="torch")
    ...     nn.contents(path)
    ...     nn.load(model, path)
    {'bias': float32[1], whole, 'weight': float32[1, 2], whole}
    {}
    """
    target, caller = os.fspath(path), f"save({os.fspath(path)!r})"
    parts = objects if isinstance(objects, Mapping) else {"": objects}
    if is_weights(target):
        _check_weights(objects, caller)
    if names is not None:
        _check_single(objects, caller)
    arrays, structure = _entries(objects)
    comments = {each: _comment(layout) for name, x in parts.items() for each, layout in _named_layouts(name, x, arrays)}
    metadata = {} if names in (None, "ringtape") else {"format": "pt"}  # by which other libraries know torch's layout
    if names is not None or is_weights(target):
        arrays, comments = _renamed(objects, arrays, comments, names or "ringtape", caller)

    def write() -> None:
        if is_weights(target):
            with replaced(target) as part:
                write_weights(part, caller, arrays, comments, metadata)
        else:
            with replacing(target) as file:
                write_archive(file, arrays, comments, structure)

    axes = {axis for x in parts.values() for layout in _layouts(x) for axis in sharded_axes(layout)}
    if not axes:
        write()
        return
    group = state.distribution.group(tuple(axes))
    error: OSError | RingtapeError | None = None
    if group.exchange(os.fsencode(target)).index(os.fsencode(target)) == group.index:
        try:
            write()
        except (OSError, RingtapeError) as failure:
            error = failure
    failures = group.exchange(b"" if error is None else str(error).encode())
    if error is not None:
        raise error
    for rank, text in zip(group.ranks, failures, strict=True):
        if text:
            raise RingtapeError(f"save: rank {rank} could not write the file: {text.decode()}")


def _entries(objects: Any) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The arrays of a file, and its structure or None."""
    arrays: dict[str, Any] = {}
    if isinstance(objects, Mapping):
        structure = {name: _encoded(_State(x.state_dict()) if _has_state(x) else x, f"{name}", arrays)
                     for name, x in _checked(objects).items()}  # fmt: skip
        for name, x in objects.items():
            if found := _attached_states(x):
                structure[name]["attached"] = _encoded(found, f"{name}/attached", arrays)["dict"]
        return arrays, structure
    arrays = dict(_module(objects).state_dict())
    if found := _attached_states(objects):
        return arrays, {"": {"state": {}, "attached": _encoded(found, "attached", arrays)["dict"]}}
    return arrays, None


def _check_single(objects: Any, caller: str) -> None:
    if isinstance(objects, Mapping):
        raise OptionError(f"{caller}: names and ignore are of one module, and several objects were given")
    _module(objects)


def _check_weights(objects: Any, caller: str) -> None:
    """Raise unless objects can be written to a `.safetensors` file."""
    if isinstance(objects, Mapping):
        raise ArgumentError(
            f"{caller}: several objects were given; needed: a Module, because a .safetensors file has arrays alone\n"
            "  fix: a name that ends in .npz; or nn.save(model, path) of the module alone"
        )
    if states := _attached_states(_module(objects)):
        raise ArgumentError(
            f"{caller}: {type(objects).__name__} has the state of {list(states)}, and a .safetensors file has weights "
            "alone\n  fix: nn.save(model.module, path); or a name that ends in .npz"
        )
    library(caller)


def _renamed(
    module: Module, arrays: dict[str, Any], comments: Mapping[str, dict[str, Any]], given: Any, caller: str
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Arrays and comments by the names that a file has for them. What is attached to a module keeps its names."""
    names, blocks = names_of(module, given, caller), blocks_of(module)
    found: dict[str, Any] = {}
    noted: dict[str, dict[str, Any]] = {}
    for name in list(arrays):
        to, array = names.get(name, TorchName(name)), arrays.pop(name)  # at most one array is there twice
        if to.name in found:
            raise OptionError(f"{caller}: names has {to.name!r}, which is the name of what is attached to the module")
        found[to.name] = to_file(array, to, blocks.get(name, 1), caller)
        noted[to.name] = dict(comments.get(name, {}))
        if name in names:
            noted[to.name] |= {"name": name, "transposed": to.is_transposed}
    return found, noted


@typed_errors
def load(
    objects: Any, path: str | os.PathLike[str], *, names: Any = None, ignore: str | Iterable[str] = ()
) -> dict[str, Any]:
    """Read what `save` wrote, or a file of weights of torch, on any number of ranks. Each rank takes its part.

    It loads all or nothing: if one of the objects refuses its state, on any rank of the mesh, none has been changed on
    any rank. So inside the block of a mesh all its ranks call it, unless `objects` is empty.

    Parameters
    ----------
    objects : Module, or mapping
        A module with the parameters and buffers of the one that was saved, in any layout; or objects by name, all or
        some of those that were saved.
    path : str or path
        The file; on all ranks the same, except for Varying parameters. The index of several files of weights,
        ``model.safetensors.index.json``, stands for all of them.
    names : {"ringtape", "torch"} or mapping, optional
        Of one module: the names that its values have in the file, and which matrices are transposed there. "torch" is
        for the state of a torch module; for one with a prefix, give ``torch_names(module, prefix="transformer.")``. The
        default is what the file says. It is needed for ``.safetensors`` files that ringtape has not written.
    ignore : text or iterable of text
        Of one module: patterns (``fnmatch``) of entries that are in the file and not in the module.

    Returns
    -------
    dict
        The plain values of the file, by name.

    Raises
    ------
    FileError
        The file is damaged, compressed, or none that `save` or `numpy.savez` wrote; or the path is that of no file.
    LayoutError
        The file contains the Varying values of another place on the mesh, or of a mesh of another size.
    ShapeError
        The file has no object or value of a name, or values besides. See also `Module.load_state_dict`.
    OptionError
        `names` or `ignore` is given with several objects; `names` is needed, or differs from what the file says.
    DependencyError
        It is a ``.safetensors`` file, and the library is not installed.
    DtypeError, TapeError
        See `Module.load_state_dict`.
    RingtapeError
        Another rank could not load the file.

    Notes
    -----
    An array that is read is compared with the checksum that `save` has written, whole and on each rank that reads it,
    before the rank takes its part. Files that `save` has not written may have none: `contents` says so.

    Objects of ringtape check their states before any is changed. An object of another class gets its state by
    ``load_state_dict`` when all others have been checked; if it raises, it gets the state that it had before.
    """
    if names is not None or ignore:
        _check_single(objects, f"load({os.fspath(path)!r})")
    parts = _checked(objects) if isinstance(objects, Mapping) else {"": _module(objects)}
    commits: list[Callable[[], None]] = []
    found: tuple[dict[str, Any], dict[str, Any]] = {}, {}
    with _together(bool(parts)):
        with _opened(path) as file:
            found = _read(objects, parts, file, path, names, ignore)
        plain, states = found
        # Modules first: a parameter that is assigned replaces the master weight that an optimizer has of it.
        for name, x in sorted(parts.items(), key=lambda each: not isinstance(each[1], Module)):
            if prepares(x):
                commits.append(_checking(name, x, states[name], path))
            if isinstance(x, Module):
                saved = states.get(f"{name}/attached") or {}  # what it does not have stays as it is
                for key, each in attached_to(x).items():
                    if key in saved:
                        commits.append(each.prepare_state_dict(saved[key]) if prepares(each) else
                                       partial(each.load_state_dict, saved[key]))  # fmt: skip
    others = {name: x for name, x in parts.items() if not prepares(x)}
    if others:
        with restored_on_error(others.values()), _together(True):
            for name, x in others.items():
                x.load_state_dict(states[name])
    for commit in commits:
        commit()
    return plain


@contextmanager
def _together(is_shared: bool) -> Iterator[None]:
    """A block that fails on all ranks of the mesh if it fails on one of them."""
    group = state.distribution.group()
    if not is_shared or group.size == 1 or group.dry:
        yield
        return
    error: Exception | None = None
    try:
        yield
    except Exception as failure:
        error = failure
    texts = group.exchange(b"" if error is None else f"{type(error).__name__}: {error}".encode(), of="nn.load")
    if error is not None:
        raise error
    for rank, text in zip(group.ranks, texts, strict=True):
        if text:
            raise RingtapeError(
                f"load: rank {rank} could not load the file, and so nothing was changed on any rank: {text.decode()}"
            )


@contextmanager
def restored_on_error(objects: Iterable[Any]) -> Iterator[None]:
    """A block after which objects have the states that they had before it, if there was an error."""
    before = [(x, copy.deepcopy(x.state_dict())) for x in objects]
    try:
        yield
    except BaseException:
        for x, known in before:
            x.load_state_dict(known)
        raise


@contextmanager
def _opened(path: Any) -> Iterator[File]:
    shown = f"load({os.fspath(path)!r})"
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        raise
    except OSError as error:  # as of a path below a file
        raise FileError(f"{shown}: it cannot be read: {error.strerror}; needed: a file") from error
    if not stat.S_ISREG(mode):  # a pipe would be waited for
        kind = "a directory" if stat.S_ISDIR(mode) else "no regular file"
        raise FileError(f"{shown}: it is {kind}; needed: a file")
    with open(path, "rb") as file:
        begin = file.read(9)
        file.seek(0)
        if is_index(os.fspath(path)):
            yield SeveralWeights(file, path, shown)
        else:
            yield Weights(file, path, shown) if is_weights(os.fspath(path), begin) else Archive(file, shown)


def _read(
    objects: Any, parts: Mapping[str, Any], file: File, path: Any, names: Any, ignore: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The plain values of a file, and the states of objects and of what is attached to them, by name."""
    structure = file.structure
    is_single = structure is None or "" in structure
    _check_names(path, objects, None if is_single else structure)
    held = [file.comment(name) for name in file.names if is_single or name.partition("/")[0] in parts]
    saved = {axis: at for each in held for axis, at in each.get("places", {}).items()}
    own = {axis: at for x in parts.values() for layout in _layouts(x) for axis, at in _places_of(layout).items()}
    _check_places(path, saved, own)
    wanted = {name: x for name, x in (structure or {}).items() if name in parts or not _is_state(x)}
    states, used = _states(file, wanted, {name for name, x in parts.items() if prepares(x)})
    if is_single:
        entries = [name for name in file.names if name not in used]
        states[""] = _single_state(file, entries, parts, path, names, ignore)
    plain = {name: x for name, x in states.items() if name in wanted and name not in parts}
    return plain, states


def _single_state(
    file: File, entries: list[str], parts: Mapping[str, Any], path: Any, names: Any, ignore: Any
) -> Any:
    """The state of the one module of a file, by its own names, or by those of the file."""
    has_names = names is not None or ignore or not isinstance(file, Archive) or any(
        "name" in file.comment(entry) for entry in entries
    )  # fmt: skip
    if "" in parts and has_names:
        return state_from(file, entries, parts[""], names, ignore, f"load({os.fspath(path)!r})")
    return OwnedState({name: file.array(name) for name in entries})


def _states(file: File, wanted: Mapping[str, Any], preparing: set[str]) -> tuple[dict[str, Any], set[str]]:
    """The decoded values and states of a file, by name, and the names of the arrays that they use."""
    states: dict[str, Any] = {}
    used: set[str] = set()

    def array(name: str) -> Any:
        used.add(name)
        return file.array(name)

    with file.checked("structure.json"):
        for name, code in wanted.items():
            made: type[dict[str, Any]] = OwnedState if name in preparing else dict
            states[name] = _decoded({"state": code["state"]} if _is_state(code) else code, array, made)
            if _is_state(code) and "attached" in code:
                states[f"{name}/attached"] = _decoded({"dict": code["attached"]}, array)
    return states, used


def prepares(x: Any) -> bool:
    """Whether an object can check a state without taking it, and no subclass has another ``load_state_dict``."""
    if not hasattr(x, "prepare_state_dict"):
        return False
    for cls in type(x).__mro__:
        if "prepare_state_dict" in vars(cls) or "load_state_dict" in vars(cls):
            return "prepare_state_dict" in vars(cls)
    return True  # a module of Python


def _checking(name: str, x: Any, given: Any, path: Any) -> Callable[[], None]:
    """Check a state, and return the function that sets it. Errors say which object refused it."""
    try:
        commit: Callable[[], None] = x.prepare_state_dict(given)
    except RingtapeError as error:
        if name:
            error.add_note(f"while load({os.fspath(path)!r}) checked the state of {name!r}")
        raise
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise FileError(
            f"load({os.fspath(path)!r}): the state of {name or 'the module'} is none of a {type(x).__name__}: {error}"
        ) from error
    return commit


# -- what is attached to modules ---------------------------------------------------------------------------------------
def attached_to(module: Module) -> dict[str, Any]:
    """The objects with a state that are attached to a module or to one below it, by path; see `Module.attached`."""
    return {
        f"{path}.{name}" if path else name: x
        for path, each in tree_of(module).modules
        if type(each).attached is not Module.attached  # a submodule may have this name
        for name, x in type(each).attached(each)
        if _has_state(x)
    }


def _attached_states(x: Any) -> dict[str, Any]:
    return {name: each.state_dict() for name, each in attached_to(x).items()} if isinstance(x, Module) else {}


def packed(value: Any) -> bytes:
    """Return a value of numbers, texts, arrays, lists and dictionaries as bytes, for other ranks; see `unpacked`."""
    arrays: dict[str, Any] = {}
    structure = {"value": _encoded(value, "value", arrays)}
    file = io.BytesIO()
    write_archive(file, arrays, {}, structure)
    return file.getvalue()


def unpacked(data: bytes) -> Any:
    """Return the value of which `packed` made these bytes.

    Examples
    --------
    >>> unpacked(packed({"w": np.arange(3), "steps": (1, 2.5)}))
    {'w': array([0, 1, 2]), 'steps': (1, 2.5)}
    """
    file = Archive(io.BytesIO(data), "unpacked")
    return _decoded(file.structure["value"], file.array)


@typed_errors
def contents(path: str | os.PathLike[str], *, check: bool = False) -> dict[str, FileEntry]:
    """Return what a file has that `save` wrote, by name: types, shapes, layouts, and which arrays are parts of a model.

    The arrays of a list or a tuple are listed beside it. ``python -m autograd weights FILE`` prints it, and checks.

    Parameters
    ----------
    path : str or path
    check : bool
        Whether to read each array, and to compare it with its checksum. Entries without one say so, as `load` does not.

    Raises
    ------
    FileError
        The file, or an array that is checked, is damaged.

    Examples
    --------
    >>> import os, tempfile
    >>> from autograd import nn
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "model.npz")
    ...     nn.save(nn.Linear(2, 1), path)
    ...     nn.contents(path)
    {'weight': float32[2, 1], whole, 'bias': float32[1], whole}
    >>> import safetensors.numpy, numpy
    >>> with tempfile.TemporaryDirectory() as folder:  # a file of another program
    ...     path = os.path.join(folder, "model.safetensors")
    ...     safetensors.numpy.save_file({"weight": numpy.ones(2)}, path)
    ...     nn.contents(path, check=True)
    {'weight': float64[2], whole, without digest}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "run.npz")
    ...     nn.save({"model": nn.Linear(2, 1), "best": 0.25, "name": "first"}, path)
    ...     list(nn.contents(path).items())[2:]
    [('best', float), ('name', str of length 5)]
    """
    if check is not True and check is not False:
        raise ArgumentError(f"contents: check={check!r} was given; needed: True or False")
    found = {}
    with _opened(path) as file:
        for name in file.names:
            held, header = file.comment(name), file.header(name)
            with file.checked(name):
                places = {axis: (place, size) for axis, (place, size) in held.get("places", {}).items()}
            found[name] = FileEntry(header.shape, header.dtype, held.get("layout", {}), places, checksum=file.checksum)
            if check:
                file.array(name)
        with file.checked("structure.json"):
            return found | dict(_values_of(file.structure or {}))


def _values_of(items: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, FileEntry]]:
    """The plain values of a structure, by the names of their places."""
    for key, code in items.items():
        name, kind, length = f"{prefix}{key}", type(code).__name__, tuple[int, ...]()
        if isinstance(code, dict) and ("state" in code or "dict" in code):
            start = f"{name}/" if name else ""
            yield from _values_of(code["state"] if "state" in code else code["dict"], start)
            yield from _values_of(code.get("attached", {}), f"{start}attached/")
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


def _comment(layout: Layout) -> dict[str, Any]:
    return {"layout": {axis: repr(label) for axis, label in layout.items()}, "places": _places_of(layout)}


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
            )
        now = f"has {here[1]}" if here is not None else "is none on which the module is Varying"
        raise LayoutError(
            head + f"axis {axis!r} had {size} ranks, each with values of its own, and now {now}\n"
            f"  fix: load it with the layouts and the number of ranks of the run that saved it, {axis}={size}\n"
            f"  or:  choose the values of one rank, module.load_state_dict(dict(numpy.load({os.fspath(path)!r})))"
        )


# -- several objects in a file -----------------------------------------------------------------------------------------
def _module(x: Any) -> Module:
    if not isinstance(x, Module):
        raise ArgumentError(
            f"save, load: {type(x).__name__} was given; needed: a Module, or a mapping of names to objects\n"
            "  fix: nn.save({'optimizer': optimizer}, path)"
        )
    return x


def _has_state(x: Any) -> bool:
    return hasattr(x, "state_dict") and hasattr(x, "load_state_dict")


def _checked(objects: Mapping[str, Any]) -> dict[str, Any]:
    for name in objects:
        if not isinstance(name, str) or not name or "/" in name:
            raise ArgumentError(f"save, load: the name {name!r} was given; needed: a text without '/'")
    return dict(objects)


class _State(dict[str, Any]):
    """The `state_dict` of an object, as opposed to a plain dictionary."""


def _is_state(code: Any) -> bool:
    return isinstance(code, dict) and "state" in code


def _refuse_part(layout: Layout | None, name: str) -> None:
    """Raise LayoutError for a value of which each rank holds something else."""
    for axis, label in () if layout is None else layout.items():
        if label.letter not in "RICD":
            raise LayoutError(
                f"save: {name} is {layout!r}; axis {axis!r}: it is {label.word}, and the file would have what "
                "this rank holds\n  fix: cc.all_reduce or cc.all_gather of it; or the object that has it"
            )


def _encoded(x: Any, name: str, arrays: dict[str, Any]) -> Any:
    """A value as JSON. Arrays are put into `arrays`, under the names of their places."""
    if x.__class__ in TENSORS:
        _refuse_part(x.layout, name)
        x = x.array
    if not isinstance(x, np.ndarray | np.generic) and is_array(x):
        x = to_host(x)
    if isinstance(x, np.ndarray | np.generic):
        require_plain_array(x, f"save: {name}", stored=True)
        if name in arrays:
            raise ArgumentError(
                f"save: two arrays have the name {name!r} in the file, because a key has '/' in it\n"
                "  fix: keys without '/'"
            )
        arrays[name] = x
        return {"array": name, "scalar": isinstance(x, np.generic)}
    if isinstance(x, Mapping):
        if not all(isinstance(key, str) for key in x):
            raise ArgumentError(f"save: {name} is a mapping with keys that are no texts")
        kind = "state" if isinstance(x, _State) else "dict"
        return {kind: {key: _encoded(value, f"{name}/{key}", arrays) for key, value in x.items()}}
    if isinstance(x, list | tuple):
        items = [_encoded(value, f"{name}/{i}", arrays) for i, value in enumerate(x)]
        return items if isinstance(x, list) else {"tuple": items}
    if x is None or isinstance(x, bool | int | float | str):
        return x if not isinstance(x, float) or math.isfinite(x) else {"float": repr(x)}
    raise ArgumentError(
        f"save: {name} is a {type(x).__name__}; needed: an object with state_dict and load_state_dict, or numbers, "
        "texts, arrays, lists, tuples and dictionaries"
    )


def _decoded(code: Any, array: Callable[[str], Any], made: type[dict[str, Any]] = dict) -> Any:
    """The value of a structure. `made` is the type of its dicts."""
    if isinstance(code, list):
        return [_decoded(x, array, made) for x in code]
    if not isinstance(code, dict):
        return code
    if "array" in code:
        return array(code["array"])[()] if code["scalar"] else array(code["array"])
    if "tuple" in code:
        return tuple(_decoded(x, array, made) for x in code["tuple"])
    if "float" in code:
        return float(code["float"])
    ((_, items),) = code.items()
    return made({key: _decoded(x, array, made) for key, x in items.items()})


def _check_names(path: Any, objects: Any, structure: dict[str, Any] | None) -> None:
    """Raise ShapeError unless the file has a state for each object."""
    has = [] if structure is None else [name for name, x in structure.items() if _is_state(x)]
    if isinstance(objects, Mapping):
        missing = [name for name in objects if name not in has]
        if missing:
            raise ShapeError(
                f"load({os.fspath(path)!r}): the file has the states of {has or 'one module'}; missing: {missing}"
                + ("\n  fix: nn.load(model, path)" if structure is None else "")
            )  # fmt: skip
    elif structure is not None:
        raise ShapeError(
            f"load({os.fspath(path)!r}): the file has the states of {has}; a {type(objects).__name__} was given\n"
            f"  fix: nn.load({{{(has or ['model'])[0]!r}: model}}, path)"
        )
