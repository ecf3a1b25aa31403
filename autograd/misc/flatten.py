"""Conversion of nested containers to one flat array and back, differentiable in both directions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from .. import numpy as np
from ..arrays.plain import require_plain
from ..engine import pytree
from ..errors import typed_errors

__all__ = ["flatten", "flatten_func"]

Function = Callable[..., Any]


@typed_errors
def flatten(value: Any) -> tuple[Any, Function]:
    """Flatten a nested tuple, list or dictionary of arrays and numbers to one array.

    Dictionaries are flattened in the order of their sorted keys. Mixed dtypes are converted to a common one; where that
    is complex, `unflatten` takes the real part of what was real.

    Returns
    -------
    flat : array, shape (n,)
    unflatten : callable
        From an array, plain or traced, of the length of `flat` to a container like `value`.

    Raises
    ------
    ValueError
        In `unflatten`: the array has another length.

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
    leaves, structure = pytree.flatten(_sorted(value))
    require_plain(leaves, "flatten")
    flat = np.concatenate([np.ravel(x) for x in leaves]) if leaves else np.zeros(0)
    shapes = [tuple(int(n) for n in np.shape(x)) for x in leaves]
    mixed = flat.dtype.kind == "c"  # then a real leaf becomes real again
    reals = [mixed and np.result_type(x).kind != "c" for x in leaves]

    def unflatten(vector: Any) -> Any:
        needed = sum(map(math.prod, shapes))
        if len(vector) != needed:
            raise ValueError(f"unflatten was given {len(vector)} elements; needed: {needed}")
        parts, start = [], 0
        for shape, is_real in zip(shapes, reals, strict=True):
            end = start + math.prod(shape)
            part = np.reshape(vector[start:end], shape)
            parts.append(np.real(part) if is_real else part)
            start = end
        return structure.rebuild(parts)

    return flat, unflatten


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    if isinstance(value, tuple | list):
        items = [_sorted(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def flatten_func(func: Function, example: Any) -> tuple[Function, Function, Any]:
    """Turn a function of a container into one of a flat array.

    Returns
    -------
    flat_func : callable
        From the flattened argument, and further arguments, to the flattened result of `func`.
    unflatten : callable
        From a flat array to a container like `example`.
    flat_example : array
        `example`, flattened.
    """
    flat_example, unflatten = flatten(example)

    def flat_func(vector: Any, *args: Any) -> Any:
        return flatten(func(unflatten(vector), *args))[0]

    return flat_func, unflatten, flat_example
