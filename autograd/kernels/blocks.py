"""Helpers of kernels: slices of blocks, arrays as matrices or vectors, and the dtype of sums."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

BLOCK_BYTES = 1 << 18  # a block and its intermediate results stay in a second-level cache


def blocks(count: int, item_bytes: int, block_bytes: int = BLOCK_BYTES) -> Iterator[slice]:
    """Slices that cover `count` items, each of at most `block_bytes`, but at least one item."""
    step = max(1, block_bytes // max(item_bytes, 1))
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))


def rows(x: Any) -> Any:
    """`x` as a matrix of its last dimension, a view where it is contiguous."""
    return (x if x.flags.c_contiguous else x.copy()).reshape(-1, x.shape[-1])


def flat(x: Any) -> Any:
    """All elements of `x` in order, a view where it is contiguous."""
    return (x if x.flags.c_contiguous else x.copy()).reshape(-1)


def wide(dtype: Any) -> Any:
    """The dtype in which a kernel computes elements of a dtype."""
    return np.dtype(np.float64) if dtype == np.float64 else np.dtype(np.float32)
