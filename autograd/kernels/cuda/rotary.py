"""Rotary position embedding. The tables are read from the caches, however they are broadcast."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import Kernel
from .program import TYPES, Launch, launch_known, program, type_name
from .rows import contiguous

THREADS = 256
PROGRAM = program("rotary", tuple(f"rotary<{name}>" for name in TYPES))


def _repeats(table: tuple[int, ...], rows: tuple[int, ...]) -> tuple[int, int, int] | None:
    """The (period, repeats, inner) by which rows of x, [again, outer, repeats, inner], are those of a table.

    The table is [outer, inner], and ``period = outer * repeats * inner``. None for more groups of dimensions.

    Examples
    --------
    >>> _repeats((1, 7), (2, 3, 7)), _repeats((5, 1, 7), (5, 3, 7)), _repeats((5, 3, 1), (2, 5, 3, 4))
    ((7, 1, 7), (105, 3, 7), (60, 4, 1))
    """
    kept = (1,) * (len(rows) - len(table)) + table
    again = next((i for i, n in enumerate(kept) if n != 1), len(kept))
    kept, rows = kept[again:], rows[again:]
    period = max(math.prod(rows), 1)
    differs = [i for i, (m, n) in enumerate(zip(kept, rows, strict=True)) if m != n]
    if not differs:
        return period, 1, period
    first, last = differs[0], differs[-1] + 1
    if any(n != 1 for n in kept[first:last]):
        return None
    return period, math.prod(rows[first:last]), math.prod(rows[last:])


def _table(t: Any, shape: tuple[int, ...], half: int) -> Any:
    """A table with all features, and contiguous."""
    if t.shape == shape and t.shape[-1] == half:
        return contiguous(t)
    return contiguous(np.broadcast_to(t, (*shape[:-1], half)))


def _rotate(x: Any, cos: Any, sin: Any, interleaved: bool, sign: int) -> Any:
    whole, half = contiguous(x), x.shape[-1] // 2
    y = np.empty_like(whole)
    if not x.size:
        return y
    shape = np.broadcast_shapes(cos.shape, sin.shape)
    found = _repeats(shape[:-1], x.shape[:-1])
    if found is None:  # there are further groups of dimensions that are broadcast
        shape, found = (*x.shape[:-1], half), (x.size // x.shape[-1], 1, x.size // x.shape[-1])
    n, packs = x.size // x.shape[-1], -(-half * x.itemsize // 16)

    def make() -> Launch:
        block = min(packs, THREADS), max(1, THREADS // packs)
        numbers = np.int64(n), np.int32(half), *map(np.int64, found), np.int32(interleaved), np.int32(sign)
        return Launch((-(-n // block[1]),), block, (None, None, None, None, *numbers))

    launch_known(
        PROGRAM, f"rotary<{type_name(x.dtype)}>", (n, half, found, interleaved, sign), make,
        whole, _table(cos, shape, half), _table(sin, shape, half), y,
    )  # fmt: skip
    return y


def _forward(xs: tuple[Any, ...], options: tuple[Any, ...], keep: bool) -> tuple[Any, Any]:
    x, cos, sin = xs
    return _rotate(x, cos, sin, options[0], 1), None


def _backward(
    ct: Any, kept: Any, xs: tuple[Any, ...], options: tuple[Any, ...], wanted: Sequence[bool], last: bool
) -> Sequence[Any]:
    _, cos, sin = xs
    return _rotate(ct, cos, sin, options[0], -1), None, None  # the inverse rotation


rotary_kernel = Kernel(_forward, _backward)
