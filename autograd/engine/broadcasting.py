"""Broadcasting, and how it is undone for cotangents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["broadcast", "ones", "unbroadcast"]


def broadcast(shapes: Sequence[tuple[int, ...]], options: Any) -> Any:
    """The `dims` of elementwise operations: NumPy's broadcasting."""
    ndim = max(map(len, shapes))
    return [tuple(range(ndim - len(shape), ndim)) for shape in shapes]


def unbroadcast(ct: Any, shape: tuple[int, ...]) -> Any:
    """Sum a cotangent over the dimensions along which an operand of `shape` was repeated."""
    have = ct.shape
    if have == shape:
        return ct
    if len(have) == 2 and have[1:] == shape and type(ct) is np.ndarray and ct.dtype.kind == "f":  # a bias
        return ones(have[0], ct.dtype).dot(ct)  # BLAS, in half the time of a sum over rows
    axes = _repeated.get((have, shape))
    if axes is None:
        extra = len(have) - len(shape)
        axes = tuple(range(extra)) + tuple(i + extra for i, n in enumerate(shape) if n == 1 and have[i + extra] != 1)
        if len(_repeated) > 4096:
            _repeated.clear()
        _repeated[have, shape] = axes
    ct = _add_reduce(ct, axes) if type(ct) is np.ndarray else ct.sum(axis=axes)
    return ct if ct.shape == shape else ct.reshape(shape)


def ones(n: int, dtype: Any) -> Any:
    """A vector of ones, made once."""
    found = _ones_made.get((n, dtype))
    if found is None:
        if len(_ones_made) > 64:
            _ones_made.clear()
        found = _ones_made[n, dtype] = np.ones(n, dtype)
    return found


_ones_made: dict[Any, Any] = {}
_repeated: dict[Any, tuple[int, ...]] = {}  # (cotangent's shape, operand's shape) -> axes to sum over
_add_reduce: Any = np.add.reduce  # ndarray.sum without its wrapper
