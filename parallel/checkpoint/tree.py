"""The state of a run as a tree: JSON with the plain values, and the arrays apart, by the paths of their places in it.

====================  ==================================================================================================
code                  meaning
====================  ==================================================================================================
a JSON value          a plain value; a list
{"dict": {...}}       a mapping with texts as keys
{"tuple": [...]}      a tuple
{"float": "nan"}      a number that JSON does not have
{"value": path}       an array; ``"scalar": true`` for a number of NumPy
{"by": {...}}         a value for each parameter of an optimizer, by name
{"names": [[...]]}    the names of an optimizer's parameters, by group
{"ranks": [...]}      what each class of ranks has for itself, where states of all ranks are one list; one code if all
                      have the same
{"differs": [...]}    a value that should be one, and is another one in each class of ranks
====================  ==================================================================================================

Ranks whose trees are equal are a *class*. The stages of a pipeline have different trees: they are merged, by name.

The objects with a state may stand at any depth of mappings, lists and tuples. The tree has each under its path,
``optimizers/0``, as ``{"state": ...}``, and what else is in these containers under their name. A path is unambiguous:
in a key below the first level the characters ``/``, ``@`` and ``%`` are written as ``%2F``, ``%40`` and ``%25``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from autograd.arrays.device import is_array, to_host
from autograd.arrays.plain import require_plain_array
from autograd.arrays.shape_only import Shaped
from autograd.engine.state import state
from autograd.engine.tensor import TENSORS
from autograd.errors import ArgumentError, CheckpointError, LayoutError
from autograd.layouts.layout import Layout
from autograd.nn import Module
from autograd.nn.saving import attached_to
from autograd.optim.groups import ByParameter, Names
from autograd.whole import Piece, in_pieces
from collectives import Mesh

from ..approximate.rank_states import OfRank
from .manifest import DEEPEST
from .ownership import Placement, placement_of

__all__ = [
    "Decoder", "Encoded", "Part", "below", "encode", "encode_part", "has_state", "merged", "name_below", "objects_of",
    "on_a_mesh", "on_its_mesh", "parts_at", "parts_of", "values_of", "values_of_ranks", "walked", "with_digests",
]  # fmt: skip

_ABSENT: Any = object()
_HERE = nullcontext()
_DEEPEST = DEEPEST - 4  # of containers, besides what the code of a value adds


def has_state(x: Any) -> bool:
    """Whether an object has a state that can be set."""
    return hasattr(x, "load_state_dict") and (hasattr(x, "state_dict") or hasattr(x, "state_parts"))


def below(path: str, key: Any) -> str:
    """The path of what a container has under a key.

    Raises
    ------
    ArgumentError
        Containers are nested too deeply.

    Examples
    --------
    >>> below("losses", "train/first"), below("optimizers", 0)
    ('losses/train%2Ffirst', 'optimizers/0')
    """
    if path.count("/") > _DEEPEST:
        raise ArgumentError(
            f"checkpoint: {path[:60]}... is nested deeper than {_DEEPEST} containers, or in itself\n"
            "  fix: the state as a flat mapping"
        )
    return f"{path}/{str(key).replace('%', '%25').replace('/', '%2F').replace('@', '%40')}"


def name_below(part: str) -> str:
    """The key that `below` has made a part of a path."""
    return part.replace("%40", "@").replace("%2F", "/").replace("%25", "%")


def objects_of(objects: Mapping[str, Any]) -> dict[str, Any]:
    """The objects with a state, by path, at any depth of mappings, lists and tuples.

    Raises
    ------
    ArgumentError
        Containers are nested too deeply.
    """
    return walked(objects)[0]


def walked(objects: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The result of `objects_of`, and the values by name without these. A name that has objects alone is left out.

    Examples
    --------
    >>> from autograd import nn
    >>> layer = nn.Linear(1, 1)
    >>> walked({"model": layer, "run": {"layers": [layer], "epoch": 3}, "mixed": [layer, 2]})[1]
    {'run': {'epoch': 3}, 'mixed': [None, 2]}
    """
    found: dict[str, Any] = {}
    plain: dict[str, Any] = {}
    for name, x in objects.items():
        if (rest := _without_objects(x, str(name), found)) is not _ABSENT:
            plain[name] = rest
    return found, plain


def _without_objects(x: Any, path: str, found: dict[str, Any]) -> Any:
    """Put the objects with a state into `found`, and return the rest of a value; `_ABSENT` if it has objects alone.

    The rest of a mapping lacks the keys of objects. That of a list has None in their places.
    """
    if has_state(x):
        found[path] = x
        return _ABSENT
    if not isinstance(x, Mapping | list | tuple):
        if any(hasattr(x, name) for name in (*_GETS, *_SETS)):
            found[path] = x  # of which `parts_of` says what it lacks, where all ranks hear of it
            return _ABSENT
        return x
    before = len(found)
    items = {
        key: each if each.__class__ in _PLAIN else _without_objects(each, below(path, key), found)
        for key, each in (x.items() if isinstance(x, Mapping) else enumerate(x))
    }
    if len(found) == before:
        return x
    kept = {key: each for key, each in items.items() if each is not _ABSENT}
    if not kept or isinstance(x, Mapping):
        return kept or _ABSENT
    rest = [kept.get(i) for i in items]
    return rest if isinstance(x, list) else tuple(rest)


_PLAIN = frozenset({bool, int, float, str, type(None), np.ndarray})


_GETS, _SETS = ("state_dict", "state_parts"), ("load_state_dict", "prepare_state_dict")


def _refuse_half(path: str, x: Any) -> None:
    """Raise ArgumentError for an object whose state cannot be read, or cannot be set, and for a class."""
    if isinstance(x, type):
        raise ArgumentError(
            f"checkpoint: {path} is the class {x.__name__}; needed: an object of it\n  fix: {x.__name__}(...)"
        )
    if not has_state(x):
        lacks = "load_state_dict" if any(hasattr(x, name) for name in _GETS) else "state_dict"
        has = next((name for name in (*_GETS, *_SETS) if hasattr(x, name)), "neither")
        use = "its state could be saved, and not loaded" if lacks == "load_state_dict" else "it has no state to save"
        raise ArgumentError(
            f"checkpoint: {path} is a {type(x).__name__} with {has} and without {lacks}: {use}; needed: both\n"
            f"  fix: def {lacks}(self{', state' * (lacks == 'load_state_dict')}) in {type(x).__name__}\n"
            "  or:  give what is needed of it as plain values"
        )


class Part(NamedTuple):
    """An object whose state a checkpoint has under a path of its own.

    Attributes
    ----------
    path : str
    object : object
        One of the objects of a run, or one of those of which it consists, or that are attached to it.
    owner : object
        That one of the run, on whose mesh its state is.
    """

    path: str
    object: Any
    owner: Any

    def state(self) -> Any:
        """The state of the object, of this rank alone: a `Piece` for each array. The mesh of its owner is current."""
        with in_pieces():
            return self.object.state_dict()


def parts_of(objects: Mapping[str, Any]) -> list[Part]:
    """All that has a state, in the order of paths: the one walk of a save, a load, a comparison, a copy.

    Raises
    ------
    ArgumentError
        A state can be read and not set, or set and not read. Or containers are nested too deeply.
    """
    return parts_at(objects_of(objects))


def parts_at(objects: Mapping[str, Any]) -> list[Part]:
    """The result of `parts_of`, given that of `objects_of`."""
    found: list[Part] = []
    for path, x in objects.items():
        with on_its_mesh(x):
            _add_parts(path, x, x, found)
    return found


def _add_parts(path: str, x: Any, owner: Any, found: list[Part]) -> None:
    """Add an object, what it consists of, and for a module what is attached to it."""
    _refuse_half(path, x)
    if hasattr(x, "state_parts"):
        for key, part in x.state_parts().items():
            _add_parts(f"{path}/{key}", part, owner, found)
        return
    found.append(Part(path, x, owner))
    if isinstance(x, Module):
        found += [Part(f"{path}/attached/{name}", each, owner) for name, each in attached_to(x).items()]


def on_its_mesh(x: Any) -> AbstractContextManager[Any]:
    """A block in which the mesh is current that an object has as its own, as a `Trainer` has."""
    mesh = getattr(x, "mesh", None)
    return mesh if isinstance(mesh, Mesh) and state.mesh is not mesh else _HERE


def on_a_mesh(objects: Any) -> AbstractContextManager[Any]:
    """A block with the current mesh, or, if there is none, that of an object which has one of its own."""
    if state.mesh is None:
        for x in objects_of(objects if isinstance(objects, Mapping) else {"state": objects}).values():
            if (found := on_its_mesh(x)) is not _HERE:
                return found
    return _HERE


@dataclass
class Encoded:
    """A tree, and its arrays by path.

    Attributes
    ----------
    tree : dict
    pieces : dict of str to (Piece, Placement)
        Arrays with layouts, of which the ranks together have the whole; and this rank's place among them.
    arrays : dict of str to array
        Arrays without: of them each rank has the whole.
    placements : dict of Layout to Placement
        Those of the layouts that were met.
    """

    tree: dict[str, Any] = field(default_factory=dict)
    pieces: dict[str, tuple[Piece, Placement]] = field(default_factory=dict)
    arrays: dict[str, Any] = field(default_factory=dict)
    placements: dict[Layout, Placement] = field(default_factory=dict)


def encode(
    objects: Mapping[str, Any], digest: Callable[[Any], str] | None = None,
    prepare: Callable[[Any], Any] | None = None,
) -> Encoded:  # fmt: skip
    """The state of objects and plain values, by name.

    Parameters
    ----------
    objects : mapping
    digest : callable, optional
        The digest of a host array, by which ranks compare arrays without layouts.
    prepare : callable, optional
        Returns the object whose state is taken in the place of an object.

    Raises
    ------
    ArgumentError, DtypeError, LayoutError
        A value cannot be saved.
    """
    found = Encoded()
    for name, x in objects.items():
        if not isinstance(name, str) or not name or "/" in name:
            raise ArgumentError(f"checkpoint.save: the name {name!r} was given; needed: a text without '/'")
        there, plain = walked({name: x})
        for part in parts_at(there):
            encode_part(part if prepare is None else part._replace(object=prepare(part.object)), found, digest)
        if plain:
            found.tree[name] = _code(plain[name], name, found, digest)
    return found


def encode_part(part: Part, found: Encoded, digest: Callable[[Any], str] | None = None) -> None:
    """Add the state of one object to those that were found."""
    with on_its_mesh(part.owner):
        found.tree[part.path] = {"state": _code(part.state(), part.path, found, digest)}


def _code(x: Any, path: str, found: Encoded, digest: Any) -> Any:
    if x.__class__ in TENSORS:
        x = _of_tensor(x, path)
    if isinstance(x, Piece) and x.layout is not None:
        at = found.placements.get(x.layout)
        if at is None:
            at = found.placements[x.layout] = placement_of(x.layout)
        found.pieces[path] = x, at
        return {"value": path}
    if isinstance(x, Piece):
        x = x.array
    if isinstance(x, np.ndarray | np.generic) or is_array(x):
        return _array_code(x, path, found, digest)
    if isinstance(x, OfRank):
        return {"ranks": [_code(x.mine, path, found, digest)]}
    if isinstance(x, Names):
        return {"names": [list(names) for names in x]}
    if isinstance(x, ByParameter):
        return {"by": {key: _code(each, below(path, key), found, digest) for key, each in zip(x.keys, x, strict=True)}}
    if isinstance(x, Mapping):
        for key in x:
            if not isinstance(key, str):
                raise ArgumentError(f"checkpoint.save: {path} is a mapping with keys that are no texts")
        return {"dict": {key: _code(each, below(path, key), found, digest) for key, each in x.items()}}
    if isinstance(x, list | tuple):
        items = [_code(each, below(path, i), found, digest) for i, each in enumerate(x)]
        return items if isinstance(x, list) else {"tuple": items}
    return _plain_code(x, path)


def _array_code(x: Any, path: str, found: Encoded, digest: Any) -> Any:
    if isinstance(x, np.ndarray | np.generic):
        require_plain_array(x, f"checkpoint.save: {path}", stored=True)
    host = x if isinstance(x, Shaped) else np.asarray(to_host(x))
    found.arrays[path] = host
    code: dict[str, Any] = {"value": path}
    if isinstance(x, np.generic):
        code["scalar"] = True
    if digest is not None:
        code["digest"] = digest(host)
    return code


def _plain_code(x: Any, path: str) -> Any:
    if x is None or isinstance(x, bool | int | float | str):
        return x if not isinstance(x, float) or math.isfinite(x) else {"float": repr(x)}
    raise ArgumentError(
        f"checkpoint.save: {path} is a {type(x).__name__}; needed: an object with state_dict and load_state_dict, or "
        "numbers, texts, arrays, lists, tuples and dictionaries"
    )


def _of_tensor(x: Any, path: str) -> Any:
    for axis, label in () if x.layout is None else x.layout.items():
        if label.letter not in "RICD":
            raise LayoutError(
                f"checkpoint.save: {path} is {x.layout!r}; axis {axis!r}: it is {label.word}, and has no whole value "
                "on this rank\n  fix: cc.all_reduce or cc.all_gather of it; or the object that has it"
            )
    return Piece(x.array, x.layout)


# -- the trees of several classes of ranks -----------------------------------------------------------------------------
def _merge(codes: Sequence[Any]) -> Any:
    """One code for those of all classes of ranks. `_ABSENT` stands for what a class does not have."""
    present = [code for code in codes if code is not _ABSENT]
    if present.count(present[0]) == len(present):
        return present[0]
    kinds = {next(iter(code)) if isinstance(code, dict) else None for code in present}
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind == "state":
        return {"state": _merge([code if code is _ABSENT else code["state"] for code in codes])}
    if kind == "names":
        return {"names": _merge_names([code["names"] for code in present])}
    if kind == "by" or _are_mergeable(kind, present):
        items = [{} if code is _ABSENT else code[kind] for code in codes]
        keys = dict.fromkeys(key for each in items for key in each)
        return {kind: {key: _merge([each.get(key, _ABSENT) for each in items]) for key in keys}}
    renamed = [_renamed(code, k) for k, code in enumerate(codes)]
    return {"ranks": [code and code["ranks"][0] for code in renamed]} if kind == "ranks" else {"differs": renamed}


def _merge_names(present: Sequence[Any]) -> list[list[str]]:
    groups: list[dict[str, None]] = [{} for _ in range(max(map(len, present)))]
    for names_of_groups in present:
        for group, names in zip(groups, names_of_groups, strict=False):
            group.update(dict.fromkeys(names))
    return [list(group) for group in groups]


def _are_mergeable(kind: str | None, present: Sequence[Any]) -> bool:
    """Whether mappings have the same keys, or arrays alone: the stages of a pipeline have other parameters."""
    keys = set(present[0]["dict"]) if kind == "dict" else None
    return keys is not None and (all(set(code["dict"]) == keys for code in present) or all(
        isinstance(each, dict) and "value" in each for code in present for each in code["dict"].values()
    ))  # fmt: skip


def _renamed(code: Any, k: int) -> Any:
    """A code of a class whose arrays have the number of the class at the end of their paths; None for an absent one."""
    return None if code is _ABSENT else _changed(code, lambda x: {**x, "value": f"{x['value']}@{k}"})


def _changed(code: Any, change: Callable[[dict[str, Any]], Any]) -> Any:
    """A code in which `change` has replaced those of arrays. Keys of users may be words of codes."""
    if isinstance(code, list):
        return [_changed(each, change) for each in code]
    if not isinstance(code, dict):
        return code
    if "value" in code:
        return change(code)
    kind, content = next(iter(code.items()))
    if kind in ("dict", "by"):
        return {kind: {key: _changed(each, change) for key, each in content.items()}}
    return {kind: _changed(content, change)}


def values_of(tree: Mapping[str, Any]) -> list[str]:
    """The paths of the arrays in a tree."""
    found: list[str] = []
    for code in tree.values():
        _changed(code, lambda x: found.append(x["value"]))
    return found


def values_of_ranks(tree: Mapping[str, Any]) -> list[str]:
    """The paths of the arrays in a tree that each rank has for itself, as residuals are."""
    found: list[str] = []

    def look(code: Any) -> None:
        if isinstance(code, list):
            for each in code:
                look(each)
        elif isinstance(code, dict) and "value" not in code:
            kind, content = next(iter(code.items()))
            if kind == "ranks":
                found.extend(values_of({"": content}))
            else:
                look([*content.values()] if kind in ("dict", "by") else content)

    look([*tree.values()])
    return found


def with_digests(tree: Mapping[str, Any], digests: Mapping[str, str]) -> dict[str, Any]:
    """A tree with digests of arrays, by path, by which the trees of two ranks differ if their arrays do."""
    return {
        path: _changed(code, lambda x: {**x, "digest": digests[x["value"]]} if x["value"] in digests else x)
        for path, code in tree.items()
    }


def merged(trees: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The merged tree of the trees of all classes."""
    if len(trees) == 1:
        return dict(trees[0])
    names = {name: None for tree in trees for name in tree}
    return {name: _merge([tree.get(name, _ABSENT) for tree in trees]) for name in names}


# -- back --------------------------------------------------------------------------------------------------------------
class Decoder:
    """Makes states from codes, for objects that are here.

    Parameters
    ----------
    value : callable
        ``value(path, like)`` is the array of a path. `like` is what the object has there now: a `Piece`, or None.
    place : int or None
        The class of this rank in the checkpoint, if the mesh is that of the checkpoint.
    classes : sequence of int
        The class of each rank that saved it.

    Attributes
    ----------
    unused : set of str
        The names of parameters of optimizers that this rank does not have.
    """

    def __init__(self, value: Callable[[str, Any], Any], place: int | None, classes: Sequence[int]):
        self.value, self.place, self.classes = value, place, classes
        self.unused: set[str] = set()

    def decode(self, code: Any, like: Any, path: str, of_module: bool = False) -> Any:
        """The value of a code. `like` is the present value at this place, or None.

        Of the values of a module only those are taken that it has here: others are of other stages.
        """
        if of_module and isinstance(code, dict) and "dict" in code and isinstance(like, Mapping):
            code = {"dict": {key: each for key, each in code["dict"].items() if key in like}}
        if isinstance(code, list):
            return [self.decode(each, _item(like, i), f"{path}/{i}") for i, each in enumerate(code)]
        if not isinstance(code, dict):
            return code
        if "value" in code:
            array = self.value(code["value"], like)
            return array[()] if code.get("scalar") else array
        kind, content = next(iter(code.items()))
        match kind:
            case "float":
                return float(content)
            case "tuple":
                return tuple(self.decode(content, like, path))
            case "dict":
                return {key: self.decode(each, _item(like, key), f"{path}/{key}") for key, each in content.items()}
            case "names":
                return self._names(content, like, path)
            case "by":
                return self._by_parameter(content, like, path)
            case "ranks":
                return self._ranks(content, path)
            case "differs":
                if self.place is None:
                    raise LayoutError(
                        f"checkpoint.load: {path} was another value on each rank of the run that saved it, and this "
                        "mesh is another one; needed: the mesh of the run that saved it, for a value that each rank "
                        "has for itself"
                    )
                return self.decode(content[self.place], like, path)
        raise KeyError(kind)

    def _names(self, content: list[list[str]], like: Any, path: str) -> Any:
        known = _names(content, like, path)
        mine = {name for names in known for name in names}
        self.unused |= {f"{path.removesuffix('/names')}: {x}" for names in content for x in names if x not in mine}
        return known

    def _ranks(self, content: list[Any], path: str) -> list[Any]:
        if self.place is None:
            of_class = [self.decode(each, None, path) for each in content]
            return [of_class[k if len(content) > 1 else 0] for k in self.classes]
        mine = self.decode(content[self.place if len(content) > 1 else 0], None, path)
        return [mine] * len(self.classes)  # of which only this rank's is looked at

    def _by_parameter(self, content: Mapping[str, Any], like: Any, path: str) -> list[Any]:
        if not isinstance(like, ByParameter):
            return ByParameterOf(content, [self.decode(x, None, f"{path}/{key}") for key, x in content.items()])
        missing = [key for key in like.keys if key not in content]
        if missing:
            raise CheckpointError(
                f"checkpoint.load: {path}: the checkpoint has no parameter {missing[0]!r}"
                + (f", and {len(missing) - 1} more" if len(missing) > 1 else "")
                + f"; it has {', '.join(map(repr, [*content][:8]))}"
            )
        now = [Piece(None, layout) if x is None else x for x, layout in zip(like, like.layouts, strict=True)]
        return [self.decode(content[key], x, f"{path}/{key}") for key, x in zip(like.keys, now, strict=True)]


class ByParameterOf(list[Any]):
    """Values by parameter of an object that is not here."""

    def __init__(self, keys: Any, values: list[Any]):
        super().__init__(values)
        self.keys = list(keys)


def _item(like: Any, i: Any) -> Any:
    """The present value at a place of a container, or None."""
    if isinstance(like, Mapping):
        return like.get(i)
    return like[i] if isinstance(like, list | tuple) and i < len(like) else None


def _names(saved: Sequence[Sequence[str]], like: Any, path: str) -> Any:
    """The names of this rank's parameters, which are in the groups in which they were saved."""
    if not isinstance(like, Names):
        return saved
    if len(like) != len(saved):
        raise CheckpointError(
            f"checkpoint.load: {path}: the checkpoint has {len(saved)} groups of parameters, and the optimizer has "
            f"{len(like)}; needed: the same groups, in the same order"
        )
    for k, (mine, names) in enumerate(zip(like, saved, strict=True)):
        unknown = [name for name in mine if name not in set(names)]
        if unknown:
            raise CheckpointError(
                f"checkpoint.load: {path}: group {k} of the optimizer has the parameter {unknown[0]!r}"
                + (f" and {len(unknown) - 1} more" if len(unknown) > 1 else "")
                + f", and in the checkpoint it has {', '.join(map(repr, names[:8])) or 'none'}; needed: the same groups"
                ", in the same order, of parameters with the same names"
            )
    return like
