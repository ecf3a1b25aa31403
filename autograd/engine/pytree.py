"""Pytrees: nested tuples, lists and dictionaries of arrays, as one argument or result of a transform.

`flatten` splits a container into its leaves, in order, and a `Structure`, which rebuilds it from other leaves. Tuples
(named ones too), lists, mappings and their subclasses are containers, and so are dataclasses and the classes of
`register_pytree_node`. None is an empty container, so that a missing bias needs no array. Everything else is a leaf.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache, cached_property
from types import MethodType
from typing import Any, NamedTuple

import numpy as np

from ..errors import ArgumentError, nested_in_itself, short

__all__ = ["Structure", "flatten", "node_of", "register_pytree_node", "tree_map"]

_CONTAINERS = frozenset((tuple, list, dict, type(None)))
_LEAVES = frozenset((float, complex, int, np.ndarray, np.float64, np.float32))  # tested first, because they are common


class _Node(NamedTuple):
    """A kind of container: ``split(x)`` gives the parts, their names, and the rest of `x`; `join` makes an instance."""

    split: Callable[[Any], tuple[Sequence[Any], Sequence[Any], Any]]
    join: Callable[[Any, Sequence[Any], Sequence[Any]], Any]


_PACKAGES = ("autograd", "collectives", "parallel")
_KNOWN = (tuple, list, Mapping, np.ndarray, np.generic, int, float, complex, str, bytes, type, type(None))
_nodes: dict[type, _Node | None] = {}
"""The classes that are known: registered ones, dataclasses, and those whose instances are leaves (None)."""


def _is_own(kind: type) -> bool:
    """Whether a class is one of the library's, as Tensors, modules and keys of draws are, or derives from one."""
    return any(
        base.__module__.partition(".")[0] in _PACKAGES
        and getattr(sys.modules.get(base.__module__), base.__name__, None) is base  # no example of a docstring
        for base in kind.__mro__
    )


def register_pytree_node(
    nodetype: type, flatten_func: Callable[[Any], tuple[Iterable[Any], Any]],
    unflatten_func: Callable[[Any, tuple[Any, ...]], Any],
) -> None:  # fmt: skip
    """Declare that the instances of a class are containers: wherever lists and dicts are taken, they are, too.

    A dataclass needs no declaration: its fields are its parts. One that is no array has ``field(metadata={"static":
    True})``. The signature is that of ``jax.tree_util.register_pytree_node``.

    Parameters
    ----------
    nodetype : type
        Its subclasses are not registered.
    flatten_func : callable
        ``flatten_func(x)``: the parts, and anything else that `x` is made of. The latter is compared by ``==``.
    unflatten_func : callable
        ``unflatten_func(rest, parts)``: an instance with other parts.

    Raises
    ------
    ArgumentError
        `nodetype` is no class, or a class whose instances are arrays, numbers or containers already.

    Examples
    --------
    >>> import autograd as ag
    >>> class Line:
    ...     def __init__(self, slope, offset):
    ...         self.slope, self.offset = slope, offset
    >>> ag.register_pytree_node(Line, lambda x: ((x.slope, x.offset), None), lambda _, parts: Line(*parts))
    >>> g = ag.grad(lambda line: line.slope * 2.0 + line.offset * 5.0)(Line(1.0, 0.0))
    >>> g.slope.item(), g.offset.item()
    (2.0, 5.0)
    """
    if not isinstance(nodetype, type) or not callable(flatten_func) or not callable(unflatten_func):
        raise ArgumentError(
            f"register_pytree_node({short(nodetype)}, {short(flatten_func)}, {short(unflatten_func)}) was given; "
            "needed: a class and two functions"
        )
    if issubclass(nodetype, _KNOWN) or _is_own(nodetype):
        raise ArgumentError(
            f"register_pytree_node: {nodetype.__name__} was given, whose instances are leaves or containers already; "
            "needed: a class of your own"
        )

    def split(x: Any) -> tuple[Sequence[Any], Sequence[Any], Any]:
        parts, rest = flatten_func(x)
        parts = tuple(parts)
        return parts, range(len(parts)), rest

    _nodes[nodetype] = _Node(split, lambda rest, _, parts: unflatten_func(rest, tuple(parts)))


def node_of(kind: type) -> Any:
    """The kind of container that a class is which is no sequence and no mapping; None, if its instances are leaves."""
    if kind in _nodes:
        return _nodes[kind]
    found = None
    if is_dataclass(kind) and not hasattr(kind, "__array__") and not _is_own(kind):
        given = [each for each in fields(kind) if each.init]
        names = tuple([each.name for each in given if not each.metadata.get("static")])
        static = tuple([each.name for each in given if each.metadata.get("static")])
        found = _Node(
            lambda x: ([getattr(x, name) for name in names], names, tuple([getattr(x, name) for name in static])),
            lambda rest, keys, parts: kind(**dict(zip((*keys, *static), (*parts, *rest), strict=True))),
        )
    return _nodes.setdefault(kind, found)


class Structure:
    """The nesting of a container's leaves.

    Attributes
    ----------
    kind : type or None
        The container's type; None for a leaf.
    keys : tuple
        The keys of a mapping in its order, the indices of a sequence, the names of the fields of a dataclass.
    parts : tuple of Structure
    rest : object
        What a registered class or a dataclass has besides.
    count : int
        The number of leaves below.
    """

    __slots__ = ("count", "keys", "kind", "parts", "rest")

    def __init__(
        self, kind: type | None, keys: tuple[Any, ...] = (), parts: tuple[Structure, ...] = (), rest: Any = None
    ):
        self.kind = kind
        self.keys = keys
        self.parts = parts
        self.rest = rest
        self.count: int = 1 if kind is None else sum(part.count for part in parts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Structure) or self.kind is not other.kind or len(self.keys) != len(other.keys):
            return False
        if _is_mapping(self.kind):
            mine, others = self.children(), other.children()
            return mine.keys() == others.keys() and all(mine[k] == others[k] for k in mine)
        return self.parts == other.parts and bool(self.rest == other.rest)

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        if self.kind is None:
            return "*"
        if _is_mapping(self.kind):
            return "{" + ", ".join(f"{k!r}: {p!r}" for k, p in zip(self.keys, self.parts, strict=True)) + "}"
        if self.kind is type(None):
            return "None"
        inner = ", ".join(map(repr, self.parts))
        if self.kind in _nodes:
            return f"{self.kind.__name__}({inner})"
        if issubclass(self.kind, list):
            return f"[{inner}]"
        return f"({inner},)" if len(self.parts) == 1 else f"({inner})"

    def children(self) -> dict[Any, Structure]:
        """The parts by key."""
        return dict(zip(self.keys, self.parts, strict=True))

    def rebuild(self, leaves: Sequence[Any]) -> Any:
        """The container with these leaves, of which there are `count`.

        Examples
        --------
        >>> _, structure = flatten({"w": 1.0, "b": [2.0, 3.0]})
        >>> structure.rebuild([10.0, 20.0, 30.0])
        {'w': 10.0, 'b': [20.0, 30.0]}
        """
        return leaves[0] if self.kind is None else self._build(iter(leaves))

    def _build(self, leaves: Any) -> Any:
        kind = self.kind
        if kind is None:
            return next(leaves)
        if kind is type(None):
            return None
        values = [part._build(leaves) for part in self.parts]
        if kind is tuple or kind is list:
            return kind(values)
        if _is_mapping(kind):
            pairs = dict(zip(self.keys, values, strict=True))
            return pairs if kind is dict else _mapping(kind, pairs)
        if (node := _nodes.get(kind)) is not None:
            return node.join(self.rest, self.keys, values)
        return kind(*values) if hasattr(kind, "_fields") else kind(values)

    def match(self, tree: Any, what: str) -> list[Any]:
        """The leaves of another container of the same structure, in this one's order.

        Any value is accepted where this structure has a leaf, so a list may be passed for an array.

        Raises
        ------
        ArgumentError
            A container with another structure. The message calls it `what`.
        """
        found: list[Any] = []
        self._match(tree, what, found)
        return found

    def _match(self, tree: Any, what: str, found: list[Any]) -> None:
        kind = self.kind
        if kind is None:
            found.append(tree)
            return
        if _is_mapping(kind):
            if isinstance(tree, Mapping) and tree.keys() == set(self.keys):
                for key, part in zip(self.keys, self.parts, strict=True):
                    part._match(tree[key], f"{what}[{key!r}]", found)
                return
            given = f"{type(tree).__name__} with keys {list(tree)}" if isinstance(tree, Mapping) else _shown(tree)
            raise ArgumentError(f"{what} is {given}; needed: a mapping with keys {list(self.keys)}")
        if kind is type(None):
            if tree is None:
                return
            raise ArgumentError(f"{what} is {_shown(tree)}; needed: None")
        if (node := _nodes.get(kind)) is not None:
            parts, _, rest = node.split(tree) if tree.__class__ is kind else ((), (), None)
            if tree.__class__ is not kind or len(parts) != len(self.parts) or not rest == self.rest:
                raise ArgumentError(f"{what} is {_shown(tree)}; needed: {self!r}, with the same static parts")
            for path, part, x in zip(self._paths(what), self.parts, parts, strict=True):
                part._match(x, path, found)
            return
        # a tuple matches a list
        if not isinstance(tree, tuple | list) or len(tree) != len(self.parts):
            raise ArgumentError(f"{what} is {_shown(tree)}; needed: a {_word(kind)} of length {len(self.parts)}")
        for i, (part, x) in enumerate(zip(self.parts, tree, strict=True)):
            part._match(x, f"{what}[{i}]", found)

    def paths(self, what: str) -> list[str]:
        """The name of each leaf in error messages: ``argument 0['w'][1]``."""
        if self.kind is None:
            return [what]
        return [p for path, part in zip(self._paths(what), self.parts, strict=True) for p in part.paths(path)]

    def _paths(self, what: str) -> list[str]:
        """The name of each part."""
        named = self.kind in _nodes
        return [f"{what}.{key}" if named and isinstance(key, str) else f"{what}[{key!r}]" for key in self.keys]


class _OfFields(Structure):
    """A dataclass that is rebuilt from all its attributes, and not by a call of its class."""

    __slots__ = ()

    def _build(self, leaves: Any) -> Any:
        kind: Any = self.kind
        found: Any = object.__new__(kind)
        for name, x in (*zip(self.keys, [part._build(leaves) for part in self.parts], strict=True), *self.rest):
            object.__setattr__(found, name, x)
        return found


class _Whole(Structure):
    """A container as Python copies it: the arguments of what makes it, its attributes, its items and those by key."""

    __slots__ = ()

    def _build(self, leaves: Any) -> Any:
        args, attributes, items, pairs = [part._build(leaves) for part in self.parts]
        return copy.copy(_Reduced((self.rest, args, attributes, iter(items), iter(pairs.items()))))

    def _paths(self, what: str) -> list[str]:
        return [what, f"vars({what})", what, what]


class _Reduced:
    """An object that `copy.copy` makes another one of, by the value of ``__reduce_ex__``."""

    def __init__(self, value: tuple[Any, ...]):
        self.value = value

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return self.value


LEAF = Structure(None)
"""The structure of a leaf."""


def flatten(tree: Any, is_whole: bool = False) -> tuple[list[Any], Structure]:
    """The leaves of a nested container in order, and its structure.

    With `is_whole` attributes of containers are parts, too, and to rebuild one is to copy it, as `copy.copy` does.

    Examples
    --------
    >>> leaves, structure = flatten(([1.0, 2.0], {"a": (3.0,), "b": None}))
    >>> leaves, structure
    ([1.0, 2.0, 3.0], ([*, *], {'a': (*,), 'b': None}))
    """
    leaves: list[Any] = []
    try:
        return leaves, _flatten(tree, leaves, is_whole)
    except RecursionError as error:
        raise nested_in_itself(error) from error


def _flatten(tree: Any, leaves: list[Any], is_whole: bool) -> Structure:
    kind = tree.__class__
    if kind in _LEAVES:
        leaves.append(tree)
        return LEAF
    if is_whole and kind not in _CONTAINERS and (found := _whole(tree, leaves)) is not None:
        return found
    if kind not in _CONTAINERS and not isinstance(tree, tuple | list | Mapping):
        node = _nodes[kind] if kind in _nodes else node_of(kind)
        if node is None:
            leaves.append(tree)
            return LEAF
        parts, keys, rest = node.split(tree)
        return Structure(kind, tuple(keys), tuple([_flatten(x, leaves, is_whole) for x in parts]), rest)
    if tree is None:
        return Structure(kind)
    if isinstance(tree, Mapping):
        return Structure(kind, tuple(tree), tuple([_flatten(tree[key], leaves, is_whole) for key in tree]))
    return Structure(kind, tuple(range(len(tree))), tuple([_flatten(x, leaves, is_whole) for x in tree]))


def _whole(tree: Any, leaves: list[Any]) -> Structure | None:
    """The structure of a container as it is copied; None for one that is rebuilt of its parts, and for a leaf."""
    kind: Any = tree.__class__
    if not isinstance(tree, tuple | list | Mapping):
        if node_of(kind) is None or not is_dataclass(tree):
            return None
        names, static = _fields_of(kind)
        held = {name: getattr(tree, name) for name in names if hasattr(tree, name)} | getattr(tree, "__dict__", {})
        held = _uncomputed(kind, held)
        rest = tuple([(name, held.pop(name)) for name in static if name in held])
        return _OfFields(kind, (*held,), tuple([_flatten(x, leaves, True) for x in held.values()]), rest)
    try:
        reduced = tree.__reduce_ex__(4) if hasattr(tree, "__dict__") or not isinstance(tree, tuple) else ""
    except Exception:  # of a class that has no copies
        return None
    if isinstance(reduced, str):
        return None
    make, args, attributes, items, pairs, *_ = (*reduced, None, None, None)
    if args and args[0] is kind:
        make, args = MethodType(make, kind), args[1:]
    attributes = (_uncomputed(kind, attributes) or None) if attributes.__class__ is dict else attributes
    parts: tuple[Any, ...] = args, attributes, list(items or ()), dict(pairs or ())
    return _Whole(kind, tuple(range(4)), tuple([_flatten(x, leaves, True) for x in parts]), make)


def _uncomputed(kind: type, attributes: dict[str, Any]) -> dict[str, Any]:
    """Attributes without those that a `cached_property` has computed from the others."""
    return {name: x for name, x in attributes.items() if not isinstance(getattr(kind, name, None), cached_property)}


@cache  # one entry for each class
def _fields_of(kind: type) -> tuple[list[str], list[str]]:
    """The names of the fields of a dataclass, and of the static ones among them."""
    found = fields(kind)
    return [each.name for each in found], [each.name for each in found if each.metadata.get("static")]


def tree_map(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """The container of ``function(leaf, ...)`` for every leaf of `tree` and those at its place in the `others`.

    Raises
    ------
    ArgumentError
        One of the others is nested in another way.

    Examples
    --------
    >>> tree_map(lambda p, g: p - 0.5 * g, {"w": 1.0, "b": [2.0]}, {"w": 1.0, "b": [2.0]})
    {'w': 0.5, 'b': [1.0]}
    """
    leaves, structure = flatten(tree)
    columns = [structure.match(other, f"container {i}") for i, other in enumerate(others, 1)]
    return structure.rebuild([function(*xs) for xs in zip(leaves, *columns, strict=True)])


def _is_mapping(kind: type | None) -> bool:
    return kind is not None and issubclass(kind, Mapping)


def _mapping(kind: type, pairs: dict[Any, Any]) -> Any:
    """A mapping of a type other than dict; a dict if the type cannot be made from a dict."""
    try:
        return kind(pairs)
    except TypeError:
        return pairs


def _word(kind: type) -> str:
    return "list" if issubclass(kind, list) else "tuple"


def _shown(tree: Any) -> str:
    if isinstance(tree, tuple | list):
        return f"a {_word(type(tree))} of length {len(tree)}"
    return f"{type(tree).__name__}" + (f" of shape {tuple(tree.shape)}" if hasattr(tree, "shape") else "")
