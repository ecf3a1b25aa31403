"""Tests of users' operations at their first use on a Partial or sharded operand.

What an operation declares decides which layouts it accepts: a Partial operand is legal where it is linear, and a part
of a Shard where its `dims` say what becomes of the dimension. If the declaration is wrong, so is the result, and
nothing else would tell. So each operation that is not ringtape's own is tested once for each letter at its first
Partial operands, and once at its first Shard, on this rank alone (`autograd.layouts.properties`), in every check mode
but ``off``. A test costs a few calls of the function. Arrays of a device and of a dry run are not tested.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autograd.errors import LayoutError
from autograd.layouts.layout import Layout, P, Shard
from autograd.layouts.messages import describe
from autograd.layouts.properties import dims_fault, is_testable, linear_fault

from . import modes

__all__ = ["examine"]


def examine(operation: Any, layouts: Sequence[Layout], arrays: Sequence[Any], options: tuple[Any, ...]) -> None:
    """Test what the declaration states about operands of these layouts; LayoutError if it does not hold."""
    if not modes.limit or not is_testable(arrays):
        return
    tested = operation.tested
    letters = operation.letters(len(layouts))
    for letter in dict.fromkeys(one for one, x in zip(letters, layouts, strict=True) if P in x.labels):
        if letter not in tested:
            fault = linear_fault(operation, letter, arrays, options)
            if fault:
                axis = next(axis for x in layouts for axis, label in x.items() if label is P)
                raise LayoutError(
                    f"{_described(operation, layouts, arrays)}: it is declared with the letters {' '.join(letters)!r}, "
                    f"and {fault}; needed: a linear function, because its results on the addends of a Partial value "
                    f"have to add up\n  fix: N for the operand in the declaration, and all_reduce(x, {axis!r}) before "
                    "the call"
                )
            tested.add(letter)
    if "dims" not in tested and any(isinstance(label, Shard) for x in layouts for label in x.labels):
        fault = dims_fault(operation, arrays, options)
        if fault:
            raise LayoutError(
                f"{_described(operation, layouts, arrays)}: {fault}\n  fix: Mix for a dimension along which the "
                "function mixes elements, in the function that is given as dims"
            )
        tested.add("dims")


def _described(operation: Any, layouts: Sequence[Layout], arrays: Sequence[Any]) -> str:
    shown = [f"{operation.operand_name(i)}: {describe(a, getattr(a, 'shape', ()), x)}"
             for i, (a, x) in enumerate(zip(arrays, layouts, strict=True))]  # fmt: skip
    return f"{operation.name}({', '.join(shown)})"
