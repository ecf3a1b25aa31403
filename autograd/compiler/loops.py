"""Descriptions of loops over elements, which `emit` turns into machine code. Nothing here needs LLVM.

A `Loop` has no addresses, so it is the key of its compiled code. Its steps are in static single assignment form: value
number k is the result of ``steps[k]``.

=================================================  ====================================================================
``("load", k)``                                    the element of pointer k
``("constant", dtype, hex)``                       the number with these bytes
``(ufunc, i, ...)``                                the inner loop of a NumPy ufunc, by its name, on values of one dtype
``("where", c, i, j)``                             value i where the boolean c holds, else j
``("cast", dtype, i)``                             as ``astype``
``("bitcast", dtype, i)``                          as ``view``: the bits of value i as a number of this dtype
``("store", k, i)``                                writes value i to pointer k
``("load_at", k, ((i, stride, n), ...))``          a gather: the address of pointer k, plus index i times stride
``("store_at", k, ((i, stride, n), ...), v)``      a scatter, in C order of the loop
``("add_at", k, ((i, stride, n), ...), v)``        as ``np.add.at``
``("reduce", op, k, i, axes)``, or with `layout`   the last step: ``np.<op>.reduce`` of all values i over `axes`, or
                                                   ``np.argmax``, ``np.argmin`` over one axis; `layout` are the strides
                                                   of the array that NumPy would reduce, None for C order
=================================================  ====================================================================

An index below zero counts from the end of the extent n; one out of range ends the loop, which then returns 1. The bits
of each value are NumPy's; only the sign and payload of a NaN that arithmetic makes are not promised.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

__all__ = [
    "REDUCTIONS",
    "UFUNCS",
    "Loop",
    "Pointer",
    "Unsupported",
    "contiguous",
    "dtypes_of",
    "pointer_of",
]


class Unsupported(Exception):
    """A loop, or a row of a table, that cannot be compiled with NumPy's bits. Callers call NumPy instead."""


class Pointer(NamedTuple):
    """An operand of a loop: its dtype, as ``dtype.str`` without byte order, and its strides in bytes.

    There is one stride for each dimension of the loop, the outermost first; 0 where the operand is repeated. A pointer
    that is written overlaps no other one: an operand that is read and written at the same elements is one pointer.
    Addresses are aligned to the item.
    """

    dtype: str
    strides: tuple[int, ...]


class Loop(NamedTuple):
    """A loop over a shape: its extents, outermost first, its pointers, and its steps.

    Examples
    --------
    >>> x = Pointer("f4", (4,))
    >>> Loop((8,), (x, x), (("load", 0), ("square", 0), ("store", 1, 1))).shape
    (8,)
    """

    shape: tuple[int, ...]
    pointers: tuple[Pointer, ...]
    steps: tuple[tuple[Any, ...], ...]


_FLOATS, _SIGNED, _UNSIGNED = ("f4", "f8"), ("i1", "i2", "i4", "i8"), ("u1", "u2", "u4", "u8")
_INTEGERS = (*_SIGNED, *_UNSIGNED)
_NUMBERS = (*_FLOATS, *_INTEGERS)
_ALL = (*_NUMBERS, "b1")
_STORED = (*_ALL, "f2")  # NumPy computes with float16 in float32, and rounds

UFUNCS: dict[str, tuple[int, tuple[str, ...], str]] = {
    **dict.fromkeys(("add", "multiply"), (2, _STORED, "")),
    "subtract": (2, (*_NUMBERS, "f2"), ""),
    "divide": (2, (*_FLOATS, "f2"), ""),
    "positive": (1, (*_NUMBERS, "f2"), ""),
    **dict.fromkeys(("negative", "square", "sign"), (1, _NUMBERS, "")),
    "absolute": (1, _ALL, ""),
    **dict.fromkeys(("sqrt", "reciprocal", "rint", "fabs"), (1, _FLOATS, "")),
    **dict.fromkeys(("floor", "ceil", "trunc"), (1, _FLOATS, "")),
    **dict.fromkeys(("maximum", "minimum"), (2, _ALL, "")),
    **dict.fromkeys(("fmax", "fmin"), (2, (*_INTEGERS, "b1"), "")),  # of floats, NumPy's zeros depend on the place
    "copysign": (2, _FLOATS, ""),
    "signbit": (1, _FLOATS, "b1"),
    **dict.fromkeys(("isnan", "isinf", "isfinite"), (1, _FLOATS, "b1")),
    **dict.fromkeys(("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"), (2, _ALL, "b1")),
    **dict.fromkeys(("logical_and", "logical_or", "logical_xor"), (2, _ALL, "b1")),
    "logical_not": (1, _ALL, "b1"),
    **dict.fromkeys(("bitwise_and", "bitwise_or", "bitwise_xor"), (2, (*_INTEGERS, "b1"), "")),
    **dict.fromkeys(("left_shift", "right_shift"), (2, _INTEGERS, "")),
    "invert": (1, (*_INTEGERS, "b1"), ""),
}
"""By name of a ufunc: the number of operands, their dtypes, and the dtype of the result, "" for the operands' one."""

REDUCTIONS = {
    "add": _NUMBERS, "multiply": _NUMBERS, "maximum": _ALL, "minimum": _ALL,
    "logical_and": ("b1",), "logical_or": ("b1",), "argmax": _ALL, "argmin": _ALL,
}  # fmt: skip


def pointer_of(array: Any, shape: Sequence[int] | None = None) -> Pointer:
    """The pointer of an array in a loop over its shape, or over one that it is broadcast to.

    Examples
    --------
    >>> pointer_of(np.zeros(3, np.float32), (2, 3))
    Pointer(dtype='f4', strides=(0, 4))
    """
    view = array if shape is None else np.broadcast_to(array, shape)
    strides = zip(view.shape, view.strides, strict=True)
    return Pointer(array.dtype.str[1:], tuple(0 if n == 1 else stride for n, stride in strides))


def contiguous(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """The strides of an array in C order.

    Examples
    --------
    >>> contiguous((2, 3, 4), 8)
    (96, 32, 8)
    """
    strides: list[int] = []
    for n in reversed(shape):
        strides.insert(0, itemsize)
        itemsize *= n
    return tuple(strides)


def _needed(holds: object, text: str) -> None:
    if not holds:
        raise Unsupported(text)


def dtypes_of(loop: Loop) -> list[str]:
    """The dtype of each value, "" for steps without one.

    Raises
    ------
    Unsupported
        A step has no compiled form.

    Examples
    --------
    >>> x = Pointer("f4", (4,))
    >>> dtypes_of(Loop((8,), (x, x), (("load", 0), ("isnan", 0), ("cast", "f4", 1), ("store", 1, 2))))
    ['f4', 'b1', 'f4', '']
    """
    found: list[str] = []
    pointers, last = loop.pointers, len(loop.steps) - 1
    for pointer in pointers:
        _needed(pointer.dtype in _STORED, f"dtype {pointer.dtype}")
        _needed(len(pointer.strides) == len(loop.shape), f"strides {pointer.strides} in a loop over {loop.shape}")
    for at, (name, *given) in enumerate(loop.steps):
        found.append(_dtype(name, given, found, pointers, len(loop.shape), at == last))
    return found


def _dtype(
    name: str, given: Sequence[Any], found: Sequence[str], pointers: Sequence[Pointer], ndim: int, is_last: bool
) -> str:
    """The dtype of the value of a step, and "" if it has none."""

    def of(i: int) -> str:
        if 0 <= i < len(found) and found[i]:
            return found[i]
        raise Unsupported(f"{name} of step {i}, which has no value")

    if name == "load":
        return pointers[given[0]].dtype
    if name in UFUNCS:
        count, dtypes, result = UFUNCS[name]
        kinds = {of(i) for i in given}
        if count == len(given) and len(kinds) == 1 and kinds <= {*dtypes}:
            return result or kinds.pop()
        raise Unsupported(f"{name} of {len(given)} operands of {sorted(kinds)}")
    if name == "constant":
        dtype, text = given
        _needed(dtype in _STORED and len(text) == 2 * int(dtype[1:]), f"constant {text} of dtype {dtype}")
        return str(dtype)
    if name == "where":
        c, i, j = given
        _needed(of(c) == "b1" and of(i) == of(j), f"where of {of(c)}, {of(i)}, {of(j)}")
        return of(i)
    if name == "cast":
        dtype, i = given
        _needed(dtype in _STORED, f"cast to {dtype}")
        _needed(dtype != "u4" or of(i) not in _FLOATS, "cast of floats to u4: of some the result depends on the place")
        return str(dtype)
    if name == "bitcast":
        dtype, i = given
        _needed("b1" not in (dtype, of(i)) and dtype[1:] == of(i)[1:], f"bitcast of {of(i)} to {dtype}")
        return str(dtype)
    if name == "store":
        k, i = given
        _needed(pointers[k].dtype == of(i), f"store of {of(i)} to {pointers[k].dtype}")
        return ""
    if name in ("load_at", "store_at", "add_at"):
        k, pairs, *value = given
        for i, _, n in pairs:
            _needed(of(i) in _INTEGERS, f"index of dtype {of(i)}")
            _needed(n >= 0, f"extent {n}")
        if name == "load_at":
            return pointers[k].dtype
        _needed(pointers[k].dtype == of(value[0]), f"{name} of {of(value[0])} to {pointers[k].dtype}")
        return ""
    if name == "reduce":
        _needed(is_last, "a reduction that is not the last step")
        _check_reduction(given, of(given[2]), pointers[given[1]], ndim)
        return ""
    raise Unsupported(f"{name} of {len(given)} operands")


def _check_reduction(given: Sequence[Any], dtype: str, out: Pointer, ndim: int) -> None:
    """Raise `Unsupported` if a value of a dtype is not reduced so to a result."""
    op, _, _, axes, *layout = given
    _needed(dtype in REDUCTIONS.get(op, ()), f"{op}.reduce of {dtype}")
    is_place = op in ("argmax", "argmin")
    _needed(out.dtype == ("i8" if is_place else dtype), f"{op}.reduce of {dtype} to {out.dtype}")
    _needed(not is_place or len(axes) == 1, f"{op} over the axes {axes}")
    _needed(all(0 <= a < ndim and out.strides[a] == 0 for a in axes), f"axes {axes} of the result")
    _needed(not layout or layout[0] is None or len(layout[0]) == ndim, f"layout {layout}")
