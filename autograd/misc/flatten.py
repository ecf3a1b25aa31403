"""Nested containers as one flat array and back, differentiable in both directions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from .. import numpy as np

__all__ = ["flatten", "flatten_func"]


def flatten(value: Any) -> tuple[Any, Callable[[Any], Any]]:
    """A nested tuple, list or dictionary of arrays and numbers as one flat array, and the way back.

    Dictionaries are taken in the order of their sorted keys. Numbers of mixed types are brought to a common one.

    Returns
    -------
    flat : array, shape (n,)
    unflatten : callable
        From an array like `flat` to a container like `value`; arrays and traced values alike.

    Examples
    --------
    >>> import numpy
    >>> from autograd.misc import flatten
    >>> flat, unflatten = flatten({"b": 1.0, "a": [numpy.ones((2, 2))]})
    >>> flat
    array([1., 1., 1., 1., 1.])
    >>> unflatten(2 * flat)["b"].item()
    2.0
    """
    parts = [np.ravel(x) for x in _leaves(value)]
    flat = np.concatenate(parts) if parts else np.zeros(0)
    shapes = _shapes(value)

    def unflatten(vector: Any) -> Any:
        tree, end = _built(shapes, vector, 0)
        if end != vector.shape[0]:
            raise ValueError(f"unflatten was given {vector.shape[0]} elements; needed: {end}")
        return tree

    return flat, unflatten


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple | list):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, dict):
        for key in sorted(value):
            yield from _leaves(value[key])
    else:
        yield value


class _Shape(tuple[int, ...]):
    """The shape of a leaf, which a container of integers is not."""


def _shapes(value: Any) -> Any:
    if isinstance(value, tuple | list):
        items = [_shapes(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        return {key: _shapes(value[key]) for key in sorted(value)}
    return _Shape(int(n) for n in np.shape(value))


def _built(shapes: Any, vector: Any, start: int) -> tuple[Any, int]:
    if isinstance(shapes, _Shape):
        end = start
        size = 1
        for n in shapes:
            size *= n
        end = start + size
        part = vector[start:end]
        return (np.reshape(part, tuple(shapes)) if len(shapes) != 1 else part), end
    if isinstance(shapes, dict):
        table = {}
        for key, shape in shapes.items():
            table[key], start = _built(shape, vector, start)
        return table, start
    items = []
    for shape in shapes:
        item, start = _built(shape, vector, start)
        items.append(item)
    return (type(shapes)(*items) if hasattr(shapes, "_fields") else type(shapes)(items)), start


def flatten_func(func: Callable[..., Any], example: Any) -> tuple[Callable[..., Any], Callable[[Any], Any], Any]:
    """A function of containers as one of flat arrays, with `unflatten` and the example's own flat array."""
    flat_example, unflatten = flatten(example)

    def flat_func(vector: Any, *args: Any) -> Any:
        return flatten(func(unflatten(vector), *args))[0]

    return flat_func, unflatten, flat_example
