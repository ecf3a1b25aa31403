"""Sums of rows that have the same place. The device does not wait, and the sums are the same in every run."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...arrays import runtime_of
from .program import TYPES, has_type, launch, program, type_name, wide
from .rows import BLOCK_THREADS, PACK_BYTES, contiguous

__all__ = ["sum_rows"]

CHUNK = 32
"""Sorted rows that one thread adds up; segments.cu has the same number."""
_PACKS = {"float": 4, "double": 2, "Half": 8, "BFloat16": 8}
PROGRAM = program(
    "segments",
    tuple(
        f"{kernel}<{name}, {n}, {place}>" for kernel in ("sum_chunks", "join_chunks") for name in TYPES
        for n in (1, _PACKS[name]) for place in ("int", "Index")
    ),
)  # fmt: skip


def sum_rows(xs: Any, places: Any, count: int) -> Any:
    """An array of `count` rows, each the sum of the rows of `xs` at its place; see the host's function of this name.

    Rows of 16 bits are added in float32 and rounded once. A place out of range counts modulo `count`, as in CuPy's
    indexing. CuPy adds integers by atomics, of 64 bits without a sign: their sums do not depend on the order.
    """
    shape, width = (count, *xs.shape[1:]), math.prod(xs.shape[1:])
    if xs.dtype.kind == "c":
        parts = contiguous(xs).reshape(len(xs), width).view(xs.real.dtype)
        return _sums(parts, places, count).view(xs.dtype).reshape(shape)
    if has_type(xs.dtype):
        return _sums(contiguous(xs).reshape(len(xs), width), places, count).reshape(shape)
    out = np.zeros_like(xs, np.uint64, shape=shape)
    np.add.at(out, places, xs.astype(np.int64).view(np.uint64))
    return out.view(np.int64).astype(xs.dtype)


def _sums(xs: Any, places: Any, count: int) -> Any:
    n, width = xs.shape
    out = np.zeros_like(xs, shape=(count, width))
    if not out.size or not n:
        return out
    is_narrow = count < 1 << 31
    places = np.remainder(places, count).astype(np.int32 if is_narrow else np.int64)  # a short sort where it can be
    order = np.argsort(places, kind="stable")
    places = places[order]
    chunks, name = -(-n // CHUNK), type_name(xs.dtype)
    at_once = PACK_BYTES // xs.itemsize
    runtime = runtime_of(type(xs))
    assert runtime is not None
    if width % at_once or any(runtime.address(x) % PACK_BYTES for x in (xs, out)):
        at_once = 1
    packs = width // at_once
    parts = np.empty_like(xs, wide(xs.dtype), shape=(chunks, 2, width))
    kind = f"<{name}, {at_once}, {'int' if is_narrow else 'Index'}>"
    threads = min(128, 1 << (packs - 1).bit_length())
    side_by_side = BLOCK_THREADS // threads
    grid, block = (-(-chunks // side_by_side), -(-packs // threads)), (threads, side_by_side)
    sizes = np.int64(n), np.int64(packs)
    launch(PROGRAM, f"sum_chunks{kind}", grid, block, (xs, order, places, out, parts, *sizes))
    if chunks > 1:
        launch(PROGRAM, f"join_chunks{kind}", (chunks - 1, -(-packs // 32)), (32, 8), (places, parts, out, *sizes))
    return out
