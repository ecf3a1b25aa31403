"""The names of values in error messages, as the user's program writes them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from types import ModuleType
from typing import Any

import numpy as np

from ..errors import caller
from .expressions import operand_text, texts_with_extents
from .layout import Layout, Shard

__all__ = [
    "global_extent", "name_of", "owner_of", "parameters_beside", "slice_of", "variable_of", "view_of",
]  # fmt: skip

_MOST = 64  # elements of a list, attributes of an object


def name_of(x: Any, default: str = "x", i: int = 0, operation: str = "") -> str:
    """The name of a value, or the variable of the caller that holds it, like ``W1``, ``params[1]`` or ``self.w``.

    The name of a parameter within its module, like ``0.weight``, is used only if no variable is found.

    Parameters
    ----------
    x : Tensor
        An operand that was given as a plain array is looked for, too.
    default : str
        The name of a value that no variable holds and that has no name of its own. If it is the name of a variable,
        which then holds another value, the name is the operand's text, like ``y * 2``, or ``operand 0``.
    i : int
        The index of the operand.
    operation : str
        The name of the operation; see `operand_text`.
    """
    own: str = getattr(x, "name", "")
    if isinstance(x, int | float | complex | np.generic):  # many variables may hold an equal number
        return _not_a_variable(default, i, operation)
    array = getattr(x, "array", None) if type(x).__name__ == "Given" else None
    if array is None or np.shape(array) != ():  # equal numbers may be one object
        for text, value in _variables():
            if value is x or (array is not None and value is array):
                return own if own.isidentifier() and not text.endswith(f".{own}") else text
            if x is not None and getattr(value, "_grad", None) is x:
                return f"{text}.grad"
        if owner := owner_of(array):
            return f"{owner}.data"
        if not own and (transposed := _transposed(x)):
            return f"{transposed}.T"
    return own or _not_a_variable(default, i, operation)


def _not_a_variable(default: str, i: int, operation: str) -> str:
    """The default name, or another one if a variable of the caller has this name."""
    frame = caller()
    if frame is None or not (default in frame.f_locals or default in frame.f_globals):
        return default
    return operand_text(frame, i, operation) or f"operand {i}"


def _transposed(x: Any) -> str:
    """The variable of the caller of which a matrix is the transpose, or ""."""
    array = getattr(x, "array", None)
    if not isinstance(array, np.ndarray) or array.ndim != 2 or type(x).__name__ == "Given":
        return ""
    for text, value in _variables():
        own = getattr(value, "array", None) if getattr(value, "layout", None) == x.layout else None
        if isinstance(own, np.ndarray) and own.shape == array.shape[::-1] and own.strides == array.strides[::-1]:
            if np.may_share_memory(own, array):
                return text
    return ""


def owner_of(array: Any) -> str:
    """The variable of the caller whose ``.data`` a plain array is, or ""."""
    if not isinstance(array, np.ndarray) or not array.shape:
        return ""
    for text, value in _variables():
        own = getattr(value, "array", None) if hasattr(value, "_grad") else None
        if isinstance(own, np.ndarray) and own.shape == array.shape and np.may_share_memory(own, array):
            return text
    return ""


def variable_of(array: Any) -> str:
    """The variable of the caller that holds a plain array, or ""."""
    return next((text for text, value in _variables() if value is array), "")


def global_extent(axis: str, number: Any) -> str:
    """What gives the global count in place of a local one: ``x.global_shape[0] in place of x.shape[0]``.

    x is a variable of the caller that is sharded along the axis, if there is one: one whose extent the expression
    names, one with `number` as its extent, or the latest.
    """
    found = ""
    frame = caller()
    named = texts_with_extents(frame) if frame is not None else set()
    variables = sorted(_variables(), key=lambda variable: variable[0] not in named)
    for text, value in variables:
        layout = getattr(value, "layout", None)
        label = layout[axis] if isinstance(layout, Layout) and axis in layout.grid.names else None
        if not isinstance(label, Shard) or label.extent is None:
            continue
        d, shape = label.dim, value.array.shape
        offered = f"{text}.global_shape[{d}] in place of {text}.shape[{d}]"
        if shape[d] == number:
            return offered
        if math.prod(shape) == number:
            return f"math.prod({text}.global_shape) in place of {text}.size"
        found = found or offered
    return found or "x.global_shape[0] in place of x.shape[0], for an x that is Shard(0)"


def parameters_beside(name: str) -> list[Any]:
    """The parameters of the module that a name like ``self.w`` begins with."""
    root = name.partition(".")[0]
    module = next((value for text, value in _variables() if text == root), None)
    find = getattr(module, "parameters", None)
    return list(find()) if callable(find) and "." in name else []


def view_of(x: Any) -> tuple[str, Any]:
    """The variable of the caller of which the Tensor `x` is another shape, as after ``reshape``; ("", None) if none."""
    array = getattr(x, "array", None)
    for text, value in _variables():
        own = getattr(value, "array", None) if hasattr(value, "layout") else None
        if isinstance(own, np.ndarray) and isinstance(array, np.ndarray) and own.size == array.size:
            if own.dtype == array.dtype and np.may_share_memory(own, array):
                return text, value
    return "", None


def slice_of(x: Any, dim: int, extent: int | None) -> tuple[str, Any]:
    """The variable of the caller with `extent` elements along `dim` of which the Tensor `x` is a slice, and its value.

    ("", None) if there is none. The slice may be of all elements, as on one rank, if it has no name of its own.
    """
    array = getattr(x, "array", None)
    if not isinstance(array, np.ndarray) or type(x).__name__ == "Given" or extent is None:
        return "", None
    if array.shape[dim] == extent and any(value is x for _, value in _variables()):
        return "", None
    for text, value in _variables():
        own = getattr(value, "array", None) if getattr(value, "layout", None) is not None else None
        if isinstance(own, np.ndarray) and own.strides == array.strides and own.shape[dim] == extent:
            if value is not x and np.may_share_memory(own, array):
                return text, value
    return "", None


def _variables() -> Iterator[tuple[str, Any]]:
    """The variables of the caller: its names first, then the elements and the attributes of their values."""
    frame = caller()
    if frame is None:
        return
    own = _named(frame.f_locals)[::-1]  # the latest first
    yield from own
    if frame.f_globals is not frame.f_locals:
        yield from _named(frame.f_globals)
    for name, value in own:
        if type(value) in (list, tuple):
            yield from ((f"{name}[{i}]", x) for i, x in enumerate(value[:_MOST]))
        elif isinstance(getattr(value, "__dict__", None), dict) and not isinstance(value, type | ModuleType):
            yield from ((f"{name}.{key}", x) for key, x in islice(_named(value.__dict__), _MOST))


def _named(values: Any) -> list[tuple[str, Any]]:
    return [(name, x) for name, x in dict(values).items() if name.isidentifier() and not name.startswith("_")]
