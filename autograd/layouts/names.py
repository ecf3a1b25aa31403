"""The names of values in error messages, as the user's program writes them.

The variables of the caller's frame are searched. They hold objects of any kind, whose code must not run for a name: an
attribute of theirs may be a property, warn, or wait for another rank. So a value is compared by ``is``, and only what
is `Labelled` and modules are asked for anything. The attributes of other objects are read from the dictionaries in
which Python stores them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from itertools import islice
from types import GetSetDescriptorType, ModuleType
from typing import Any

import numpy as np

from ..errors import caller
from .layout import Labelled, Layout, Shard

__all__ = [
    "global_extent", "name_of", "owner_of", "parameter_of", "parameters_beside", "slice_of", "variable_of", "view_of",
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
    array = getattr(x, "given", getattr(x, "array", None)) if type(x).__name__ == "Given" else None
    if array is None or np.shape(array) != ():  # equal numbers may be one object
        for text, value in _variables():
            if value is x or (array is not None and value is array):
                return own if own.isidentifier() and not text.endswith(f".{own}") else text
            if x is not None and _is_tensor(value) and getattr(value, "_grad", None) is x:
                return f"{text}.grad"
        if owner := owner_of(array):
            return f"{owner}.data"
        if not own and (transposed := _transposed(x)):
            return f"{transposed}.T"
    return own or _not_a_variable(default, i, operation, x)


def _not_a_variable(default: str, i: int, operation: str, x: Any = None) -> str:
    """The default name, or another one if a variable of the caller has this name, or if `x` is of a module."""
    from .expressions import operand_text  # parses the program's lines, which only messages need

    frame = caller()
    if frame is None:
        return default
    is_taken = default in frame.f_locals or default in frame.f_globals
    text = operand_text(frame, i, operation) if is_taken else ""
    return text or parameter_of(x) or (f"operand {i}" if is_taken else default)


def parameter_of(x: Any) -> str:
    """The name of a parameter of a module that a variable holds; `x` is that, or another shape of it; or ""."""
    array = x.array if _is_tensor(x) else None
    if not isinstance(array, np.ndarray):
        return ""
    for text, value in _variables():
        if _is_tensor(value) and "." in text and _is_view(array, value):
            return text
        if _is_module(value):
            for name, parameter in value.named_parameters():
                if parameter is x or _is_view(array, parameter):
                    return f"{text}.{name}" if name.isidentifier() else parameter.name or name
    return ""


def _is_view(array: Any, value: Any) -> bool:
    """Whether an array has all elements of the array of a Tensor, in the same memory."""
    own = value.array
    is_like = isinstance(own, np.ndarray) and own.size == array.size and own.dtype == array.dtype
    return is_like and np.may_share_memory(own, array)


def _transposed(x: Any) -> str:
    """The variable of the caller of which a matrix is the transpose, or ""."""
    array = getattr(x, "array", None)
    if not isinstance(array, np.ndarray) or array.ndim != 2 or type(x).__name__ == "Given":
        return ""
    for text, value in _variables():
        own = value.array if _is_tensor(value) and value.layout == x.layout else None
        if isinstance(own, np.ndarray) and own.shape == array.shape[::-1] and own.strides == array.strides[::-1]:
            if np.may_share_memory(own, array):
                return text
    return ""


def owner_of(array: Any) -> str:
    """The variable of the caller whose ``.data`` a plain array is, or ""."""
    if not isinstance(array, np.ndarray) or not array.shape:
        return ""
    for text, value in _variables():
        own = value.array if _is_tensor(value) and hasattr(value, "_grad") else None
        if isinstance(own, np.ndarray) and own.shape == array.shape and np.may_share_memory(own, array):
            return text
    return ""


def variable_of(array: Any) -> str:
    """The variable of the caller that holds a plain array, or ""."""
    return next((text for text, value in _variables() if value is array), "")


def global_extent(axis: str, number: Any) -> str:
    """The expression of the global count in place of a local one: ``x.global_shape[0] in place of x.shape[0]``.

    x is a variable of the caller that is sharded along the axis, if there is one: one whose extent the expression
    names, one with `number` as its extent, or the latest.
    """
    from .expressions import texts_with_extents

    found = ""
    frame = caller()
    named = texts_with_extents(frame) if frame is not None else set()
    variables = sorted(_variables(), key=lambda variable: variable[0] not in named)
    for text, value in variables:
        layout = value.layout if _is_tensor(value) else None
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
    module: Any = next((value for text, value in _variables() if text == root), None)
    return list(module.parameters()) if "." in name and _is_module(module) else []


def view_of(x: Any) -> tuple[str, Any]:
    """The variable of the caller of which the Tensor `x` is another shape, as after ``reshape``; ("", None) if none."""
    array = getattr(x, "array", None)
    for text, value in _variables():
        if isinstance(array, np.ndarray) and _is_tensor(value) and _is_view(array, value):
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
        own = value.array if _is_tensor(value) and value.layout is not None else None
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
        if type(value) is list or type(value) is tuple:
            yield from ((f"{name}[{i}]", x) for i, x in enumerate(value[:_MOST]))
        elif not issubclass(type(value), type | ModuleType):
            yield from ((f"{name}.{key}", x) for key, x in islice(_named(_attributes(value)), _MOST))


def _is_tensor(value: Any) -> bool:
    # ``in`` and `isinstance` would run code of a metaclass or of the object
    return any(kind is Labelled for kind in _mro_of(type(value))) and not type(value)._waits


def _is_module(value: Any) -> bool:
    nn = sys.modules.get("autograd.nn.module")  # above this room; before it is loaded there are no modules
    # `isinstance` would ask the object for its class
    return nn is not None and any(kind is nn.Module for kind in _mro_of(type(value)))


def _attributes(value: Any) -> dict[Any, Any]:
    """The instance dictionary of an object, without a look-up that its class could intercept."""
    for kind in _mro_of(type(value)):
        stored = _dict_of(kind).get("__dict__")
        if stored is not None:
            found = stored.__get__(value) if type(stored) is GetSetDescriptorType else None
            return found if type(found) is dict else {}
    return {}


_mro_of = type.__dict__["__mro__"].__get__  # ``kind.__mro__`` would ask the metaclass
_dict_of = type.__dict__["__dict__"].__get__


def _named(values: Any) -> list[tuple[str, Any]]:
    found = [(name, x) for name, x in dict(values).items() if type(name) is str]
    return [(name, x) for name, x in found if name.isidentifier() and not name.startswith("_")]
