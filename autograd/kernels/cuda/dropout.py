"""Dropout by the numbers of `autograd.random`. One bit per element is kept, so that backward draws nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import Kernel
from .philox import PROGRAM, THREADS, Runs, grid, items, runs
from .program import NULL, launch, type_name
from .rows import contiguous


def _apply(x: Any, bits: Any, is_drawn: bool, options: tuple[Any, ...], places: Sequence[Runs]) -> Any:
    (mask,) = options
    given = contiguous(x)
    y, name, start = np.empty_like(given), f"dropout<{type_name(x.dtype)}>", 0
    numbers = (np.int32(is_drawn), *map(np.uint64, mask.source.stream), np.uint64(mask.limit),
               np.float64(mask.scale))  # fmt: skip
    for r in places:
        own = NULL if bits is None else bits[start : start + items(r)]
        launch(PROGRAM, name, grid(r), (THREADS,), (given, y, own, *numbers, *map(np.int64, r)))
        start += items(r)
    return y


def _forward(xs: tuple[Any, ...], options: tuple[Any, ...], keep: bool) -> tuple[Any, Any]:
    x, (mask,) = xs[0], options
    places = list(runs(x.shape, mask.source.extents, mask.source.pieces))
    bits = np.empty_like(x, np.uint8, shape=(sum(map(items, places)),)) if keep else None
    return _apply(x, bits, False, options, places), (bits, places) if keep else None


def _backward(
    ct: Any, kept: Any, xs: tuple[Any, ...], options: tuple[Any, ...], wanted: Sequence[bool], last: bool
) -> Sequence[Any]:
    return (_apply(ct, kept[0], True, options, kept[1]),)


dropout_kernel = Kernel(_forward, _backward)
