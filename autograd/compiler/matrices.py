"""Functions of `numpy.linalg` as rows of a table: NumPy's own loops, which call LAPACK, without what surrounds them.

Checks and conversions of `numpy.linalg.inv` take as long as the inverse of a matrix of 15 rows. A loop that finds a
matrix for which it has no result, such as a singular one, sets the flag of invalid operations; the row then fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from .build import compile_texts
from .loops import Unsupported
from .machine import INVALID, Operand, Row, loop_of, symbols_of
from .products import outer_strides

__all__ = ["matrix_row"]

_LOOPS = {
    (np.linalg.inv, 1): ("inv", ("mm", "mm")), (np.linalg.cholesky, 1): ("cholesky_lo", ("mm", "mm")),
    (np.linalg.solve, 1): ("solve1", ("mm", "m", "m")), (np.linalg.solve, 2): ("solve", ("mm", "mn", "mn")),
}  # fmt: skip
"""By a function, and the dimensions of its last operand (1 where it does not count): NumPy's loop, and its operands."""

_TEXT = f"""
declare i32 @linalg_loop(ptr, ptr, ptr, ptr, ptr)
declare i32 @feclearexcept(i32)
declare i32 @fetestexcept(i32)

define i32 @NAME(ptr %context, ptr %pointers, ptr %dims, ptr %strides, ptr %auxiliary) {{
  %cleared = call i32 @feclearexcept(i32 {INVALID})
  %r = call i32 @linalg_loop(ptr %context, ptr %pointers, ptr %dims, ptr %strides, ptr %auxiliary)
  %invalid = call i32 @fetestexcept(i32 {INVALID})
  %both = or i32 %r, %invalid
  ret i32 %both
}}
"""


def matrix_row(function: Any, operands: Sequence[Operand]) -> Row:
    """The row of a function of `numpy.linalg` of float64 matrices, or batches; the last operand is its result.

    Raises
    ------
    Unsupported
        It is another function, or NumPy would convert an operand.

    Examples
    --------
    >>> from autograd.compiler.machine import is_available
    >>> x = Operand("f8", (3, 3), (24, 8))
    >>> not is_available() or matrix_row(np.linalg.inv, [x, x]).dims == (1, 3)
    True
    """
    ndim = min(len(operands[-2].shape), 2) if function is np.linalg.solve else 1
    name, kinds = _LOOPS.get((function, ndim), ("", ()))
    ufunc = getattr(getattr(np.linalg, "_umath_linalg", None), name, None) if name else None
    text = f"{function.__name__} of {', '.join(f'{x.dtype}{x.shape}' for x in operands)}"
    if ufunc is None or len(kinds) != len(operands) or any(x.dtype != "f8" for x in operands):
        raise Unsupported(text)
    sizes: dict[str, int] = {}
    for x, kind in zip(operands, kinds, strict=True):
        named = zip(kind, x.shape[-len(kind) :], strict=False)
        if len(x.shape) < len(kind) or 0 in x.shape or any(sizes.setdefault(d, n) != n for d, n in named):
            raise Unsupported(text)
    batch = operands[-1].shape[: -len(kinds[-1])]
    outer = tuple([outer_strides(x, len(kind), batch, text) for x, kind in zip(operands, kinds, strict=True)])
    inner = [x.strides[-len(kind) :] for x, kind in zip(operands, kinds, strict=True)]
    info, owner = loop_of(ufunc, ("f8",) * len(operands), (0,) * len(operands))
    return Row(
        _failing(info.loop), info.context, info.auxiliary or 0, (1, *sizes.values()),
        (*(0,) * len(operands), *(step for steps in inner for step in steps)), False,
        (batch, outer) if batch else None, owner,
    )  # fmt: skip


@cache
def _failing(loop: int) -> int:
    """A function that calls a loop, and does not return 0 where the loop has set the flag of invalid operations."""
    symbols = {"linalg_loop": loop, **symbols_of("feclearexcept", "fetestexcept")}
    ((address,),) = compile_texts([_TEXT], ["NAME"], symbols)
    return address
