"""Pytrees: nested tuples, lists and dictionaries of arrays, as one argument or result of a transform.

`flatten` splits a container into its leaves, in order, and a `Structure`, which rebuilds it from other leaves. Tuples
(named ones too), lists, mappings and their subclasses are containers. None is an empty container, so that a missing
bias needs no array. Everything else is a leaf.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import ArgumentError, nested_in_itself

__all__ = ["Structure", "flatten", "tree_map"]

_CONTAINERS = frozenset((tuple, list, dict, type(None)))
_LEAVES = frozenset((float, complex, int, np.ndarray, np.float64, np.float32))  # tested first, because they are common


class Structure:
    """The nesting of a container's leaves.

    Attributes
    ----------
    kind : type or None
        The container's type; None for a leaf.
    keys : tuple
        The keys of a mapping in its order, the indices of a sequence.
    parts : tuple of Structure
    count : int
        The number of leaves below.
    """

    __slots__ = ("count", "keys", "kind", "parts")

    def __init__(self, kind: type | None, keys: tuple[Any, ...] = (), parts: tuple[Structure, ...] = ()):
        self.kind = kind
        self.keys = keys
        self.parts = parts
        self.count: int = 1 if kind is None else sum(part.count for part in parts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Structure) or self.kind is not other.kind or len(self.keys) != len(other.keys):
            return False
        if _is_mapping(self.kind):
            mine, others = self.children(), other.children()
            return mine.keys() == others.keys() and all(mine[k] == others[k] for k in mine)
        return self.parts == other.parts

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        if self.kind is None:
            return "*"
        if _is_mapping(self.kind):
            return "{" + ", ".join(f"{k!r}: {p!r}" for k, p in zip(self.keys, self.parts, strict=True)) + "}"
        if self.kind is type(None):
            return "None"
        inner = ", ".join(map(repr, self.parts))
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
        # a tuple matches a list
        if not isinstance(tree, tuple | list) or len(tree) != len(self.parts):
            raise ArgumentError(f"{what} is {_shown(tree)}; needed: a {_word(kind)} of length {len(self.parts)}")
        for i, (part, x) in enumerate(zip(self.parts, tree, strict=True)):
            part._match(x, f"{what}[{i}]", found)

    def paths(self, what: str) -> list[str]:
        """The name of each leaf in error messages: ``argument 0['w'][1]``."""
        if self.kind is None:
            return [what]
        return [p for key, part in zip(self.keys, self.parts, strict=True) for p in part.paths(f"{what}[{key!r}]")]


LEAF = Structure(None)
"""The structure of a leaf."""


def flatten(tree: Any) -> tuple[list[Any], Structure]:
    """The leaves of a nested container in order, and its structure.

    Examples
    --------
    >>> leaves, structure = flatten(([1.0, 2.0], {"a": (3.0,), "b": None}))
    >>> leaves, structure
    ([1.0, 2.0, 3.0], ([*, *], {'a': (*,), 'b': None}))
    """
    leaves: list[Any] = []
    try:
        return leaves, _flatten(tree, leaves)
    except RecursionError as error:
        raise nested_in_itself(error) from error


def _flatten(tree: Any, leaves: list[Any]) -> Structure:
    kind = tree.__class__
    if kind in _LEAVES or (kind not in _CONTAINERS and not isinstance(tree, tuple | list | Mapping)):
        leaves.append(tree)
        return LEAF
    if tree is None:
        return Structure(kind)
    if isinstance(tree, Mapping):
        return Structure(kind, tuple(tree), tuple([_flatten(tree[key], leaves) for key in tree]))
    return Structure(kind, tuple(range(len(tree))), tuple([_flatten(x, leaves) for x in tree]))


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
