"""Sets: the unique elements of an array, and the union of two.

The elements of a set are elements of the operands: a cotangent goes to the first place where its element occurs, as in
`sort` and `take`. Indices, counts and sets of integers have no derivative. They are plain arrays, and under a mesh
Tensors with the labels of the operand. A set depends on all elements: a Partial or sharded operand is refused.

Of `numpy.intersect1d`, `setdiff1d` and `setxor1d` there is no derivative: whether an element is in the result at all
depends on its equality with another. `numpy_protocol` refuses them, and names the selection by places.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arrays.device import is_inexact
from ..errors import typed_errors
from .arguments import (
    labelled,
    normal_axis,
    operand,
    operands,
    refuse_addends,
    refuse_parts,
    run_plain,
    tensors_in,
)
from .shape import concatenate, ravel
from .sorting import take

__all__ = ["union1d", "unique", "unique_all", "unique_counts", "unique_inverse", "unique_values"]


def _discrete(array: Any, of: Any) -> Any:
    """Integers or booleans that were computed from `of`; under a mesh with its labels."""
    return array if getattr(of, "layout", None) is None else labelled(array, of)


def _gathered(x: Any, index: Any, axis: int | None) -> Any:
    """The elements of `x` at indices that were computed from it; integers and booleans as `_discrete` gives them."""
    if x.layout is None and not is_inexact(x.dtype):
        return np.take(x.array, index, axis)
    return take(x, _discrete(index, x), axis)


def _whole(name: str, x: Any) -> Any:
    """An operand of which this rank has all elements."""
    refuse_addends(name, (x,))
    refuse_parts(name, (x,))
    return operand(x)


@typed_errors
def unique(
    ar: Any, return_index: bool = False, return_inverse: bool = False, return_counts: bool = False,
    axis: int | None = None, *, equal_nan: bool = True, sorted: bool = True,
) -> Any:  # fmt: skip
    """Return the sorted unique elements, or the unique slices along an axis.

    Adjoint: each cotangent goes to the first occurrence of its element, and 0 to the others.

    With `return_index`, `return_inverse` or `return_counts` also the indices of the first occurrences, those that
    rebuild `ar` and the numbers of occurrences, as `numpy.unique` does. They have no derivative.

    Raises
    ------
    LayoutError
        `ar` is Partial, or sharded: its unique elements depend on all parts.
    """
    words: dict[str, Any] = {"axis": axis, "equal_nan": equal_nan}
    if not sorted:
        words["sorted"] = sorted  # older versions of NumPy do not have it
    if not tensors_in((ar,)):
        return np.unique(ar, return_index, return_inverse, return_counts, **words)
    x = _whole("numpy.unique", ar)
    _, index, *others = run_plain(np.unique, (x, True, return_inverse, return_counts), words)
    values = _gathered(x, index, axis if axis is None else normal_axis(axis, x.ndim))
    found = [*([index] if return_index else []), *others]
    return (values, *(_discrete(each, x) for each in found)) if found else values


def _unique_of_standard(theirs: Any) -> Any:
    """One of the functions of the array API standard, which return named tuples and take nan for unequal to itself."""

    @typed_errors
    def function(x: Any, /) -> Any:
        if not tensors_in((x,)):
            return theirs(x)
        x = _whole(f"numpy.{theirs.__name__}", x)
        found = run_plain(theirs, (x,), {})
        index = getattr(found, "indices", None)
        if index is None:
            _, index = run_plain(np.unique, (x, True), {"equal_nan": False})
        parts = {name: _discrete(each, x) for name, each in found._asdict().items()}
        return found._replace(**parts | {"values": _gathered(x, index, None)})

    function.__name__ = function.__qualname__ = theirs.__name__
    return function


unique_all = _unique_of_standard(np.unique_all)
unique_all.__doc__ = """Return the unique elements, their first indices, the indices that rebuild `x`, and counts.

    Adjoint: as of `unique`."""
unique_counts = _unique_of_standard(np.unique_counts)
unique_counts.__doc__ = """Return the unique elements and the number of times that each occurs.

    Adjoint: as of `unique`."""
unique_inverse = _unique_of_standard(np.unique_inverse)
unique_inverse.__doc__ = """Return the unique elements and the indices that rebuild `x` from them.

    Adjoint: as of `unique`."""


@typed_errors
def unique_values(x: Any, /) -> Any:
    """Return the unique elements in the order that NumPy gives them. Adjoint: as of `unique`."""
    if not tensors_in((x,)):
        return np.unique_values(x)
    x = _whole("numpy.unique_values", x)
    found = run_plain(np.unique_values, (x,), {})
    _, index = run_plain(np.unique, (x, True), {"equal_nan": False})
    return _gathered(x, index[np.argsort(np.argsort(found))], None)


@typed_errors
def union1d(ar1: Any, ar2: Any) -> Any:
    """Return the sorted elements of either array. Adjoint: to the first occurrence, which is in `ar1` if it can be."""
    if not tensors_in((ar1, ar2)):
        return np.union1d(ar1, ar2)
    return unique(concatenate([ravel(_whole("numpy.union1d", x)) for x in operands(ar1, ar2)]))
