"""The loops of `autograd.kernels`, which Numba has compiled, as rows of a table.

An adapter has the form of NumPy's inner loops, and calls the same machine code as the operations do, so a row has the
bits of its call.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from ..kernels import compiled_loops
from .build import compile_texts, noted
from .machine import Row

__all__ = ["arguments_of", "loop_row"]

_TYPES = {"f4": "float", "f8": "double", "i8": "i64"}


def arguments_of(loop: Any) -> list[tuple[Any, int, bool]]:
    """Of each argument of a loop the dtype, the dimensions (0 of a number), and whether it is written."""
    found: list[tuple[Any, int, bool]] = compiled_loops().arguments_of(loop)
    return found


def loop_row(loop: Any, shapes: Sequence[tuple[int, ...]], refuses: bool) -> Row:
    """The row of a loop, with a pointer for each argument, to C-contiguous arrays of these shapes.

    It fails where the loop `refuses` its arguments.
    """
    kinds = tuple((dtype.str[1:], ndim) for dtype, ndim, _ in arguments_of(loop))
    dims = tuple(n for shape in shapes for n in (*shape, 0, 0)[:2])
    return Row(_adapter(kinds, refuses), 0, compiled_loops().address_of(loop), dims, checks=True, owner=loop)


@cache  # linked code is never unloaded, and loops with the same arguments share it
def _adapter(kinds: tuple[tuple[str, int], ...], refuses: bool) -> int:
    """The address of a function that calls loops with such arguments; the address of the loop is its `auxiliary`.

    Numba's functions return a status, and take pointers to the result and to an error. An array is the fields of
    `numba.np.arrayobj`: two objects that own it, the number of elements, their size, the data, the shape, the strides.
    """
    lines, given = [], []
    for k, (dtype, ndim) in enumerate(kinds):
        kind, size = _TYPES[dtype], int(dtype[1:])
        lines.append(f"  %p{k} = word ptr %pointers, {k}")
        if not ndim:
            lines.append(f"  %v{k} = load {kind}, ptr %p{k}")
            given.append(f"{kind} %v{k}")
            continue
        lines += [f"  %n{k} = word i64 %dims, {2 * k}", f"  %m{k} = word i64 %dims, {2 * k + 1}",
                  f"  %all{k} = mul i64 %n{k}, {f'%m{k}' if ndim == 2 else 1}",
                  f"  %row{k} = mul i64 %m{k}, {size}"]  # fmt: skip
        shape = f"i64 %n{k}, i64 %m{k}, i64 %row{k}" if ndim == 2 else f"i64 %n{k}"
        given.append(f"ptr null, ptr null, i64 %all{k}, i64 {size}, ptr %p{k}, {shape}, i64 {size}")
    head = ["define i32 @NAME(ptr %context, ptr %pointers, ptr %dims, ptr %strides, ptr %loop) {",
            "  %result = alloca i64", "  %error = alloca ptr"]  # fmt: skip
    lines.append(f"  %status = call i32 %loop(ptr %result, ptr %error, {', '.join(given)})")
    if refuses:
        lines += ["  %truth = load i8, ptr %result", "  %fails = icmp eq i8 %truth, 0",
                  "  %failed = sext i1 %fails to i32", "  ret i32 %failed", "}"]  # fmt: skip
    else:
        lines += ["  ret i32 %status", "}"]
    ((address,),) = compile_texts(["\n".join([*head, *lines])], ["NAME"])
    return noted(address)
