"""Sums, means, extremes. The options of each are (axes, keepdims, shape of the operand)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..layout import Mix, Sum
from ..primitive import op
from ..tensor import TENSORS, Tensor
from .shape import broadcast_to, expand_dims

Axes = tuple[int, ...]


def normal_axes(axis: int | Sequence[int] | None, ndim: int) -> Axes:
    """Axes as a sorted tuple of non-negative integers; ValueError-like ShapeError outside the range."""
    from ..errors import ShapeError

    if axis is None:
        return tuple(range(ndim))
    found = []
    for a in (axis,) if isinstance(axis, int | np.integer) else axis:
        if not -ndim <= a < ndim:
            raise ShapeError(f"axis {a} was given for an array of {ndim} dimensions")
        found.append(int(a) % ndim)
    return tuple(sorted(found))


def _kept(shape: tuple[int, ...], axes: Axes) -> tuple[int, ...]:
    return tuple(1 if i in axes else n for i, n in enumerate(shape))


def _keep(y: Any, axes: Axes, shape: tuple[int, ...]) -> Any:
    """A reduced value with the axes it was reduced over as extents of 1."""
    return y if len(y.shape) == len(shape) else expand_dims(y, axes)


def _dims(entry: Any) -> Any:
    def dims(shapes: Sequence[tuple[int, ...]], options: Any) -> Any:
        axes, keepdims, _ = options
        result, at = [], 0
        for i in range(len(shapes[0])):
            if i in axes:
                result.append(entry(i))
                at += bool(keepdims)
            else:
                result.append(at)
                at += 1
        return [tuple(result)]

    return dims


def _spread(ct: Any, axes: Axes, shape: tuple[int, ...]) -> Any:
    """A cotangent of the reduced value, repeated over the operand's shape."""
    if isinstance(ct, _HOST):
        if len(axes) == len(shape) and math.prod(shape) <= 4096:  # a fill is cheaper than a view, and owned
            full = np.empty(shape, ct.dtype)
            full[...] = ct
            return full
        return np.broadcast_to(ct.reshape(_kept(shape, axes)), shape)
    return broadcast_to(_keep(ct, axes, shape), shape)


_HOST = (np.ndarray, np.generic)
_add_reduce: Any = np.add.reduce  # np.sum without its wrapper


def _sum(x: Any, axes: Axes, keepdims: bool, shape: Any) -> Any:
    if type(x) is np.ndarray:
        return _add_reduce(x, axes, None, None, keepdims)
    return np.sum(x, axis=axes, keepdims=keepdims)


_sum_op = op(
    "sum", "a", _sum, lambda ct, y, x, axes, keepdims, shape: _spread(ct, axes, shape), dims=_dims(Sum), operands="x"
)


def _mean_rule(ct: Any, y: Any, x: Any, axes: Axes, keepdims: bool, shape: tuple[int, ...]) -> Any:
    return _spread(ct * (1.0 / (math.prod(shape[i] for i in axes) or 1)), axes, shape)


_mean_op = op(
    "mean", "a", lambda x, axes, keepdims, shape: np.mean(x, axis=axes, keepdims=keepdims), _mean_rule,
    dims=_dims(lambda i: Mix), operands="x",
)  # fmt: skip


def _extreme_rule(ct: Any, y: Any, x: Any, axes: Axes, keepdims: bool, shape: tuple[int, ...]) -> Any:
    # at a tie the winners share the cotangent equally
    winners = x == _keep(y, axes, shape)
    share = _share(winners, axes, x.dtype)
    return _spread(ct, axes, shape) * share


def _share(winners: Any, axes: Axes, dtype: Any) -> Any:
    raw = winners.array if hasattr(winners, "layout") else winners
    shared = (raw / np.sum(raw, axis=axes, keepdims=True)).astype(dtype)
    return Tensor(shared, winners.layout) if hasattr(winners, "layout") else shared


def _extreme_tangent(dx: Any, y: Any, x: Any, axes: Axes, keepdims: bool, shape: tuple[int, ...]) -> Any:
    share = _share(x == _keep(y, axes, shape), axes, x.dtype)
    return sum(dx * share, axes, keepdims)


_max_op = op(
    "max", "N", lambda x, axes, keepdims, shape: np.max(x, axis=axes, keepdims=keepdims), _extreme_rule,
    saves="y0", dims=_dims(lambda i: Mix), operands="x", tangent=(_extreme_tangent,),
)  # fmt: skip
_min_op = op(
    "min", "N", lambda x, axes, keepdims, shape: np.min(x, axis=axes, keepdims=keepdims), _extreme_rule,
    saves="y0", dims=_dims(lambda i: Mix), operands="x", tangent=(_extreme_tangent,),
)  # fmt: skip
_argmax_op = op(
    "argmax", "S", lambda x, axes, keepdims, shape: np.argmax(x, axis=axes[0] if len(axes) == 1 else None), (None,),
    dims=_dims(lambda i: Mix), operands="x",
)  # fmt: skip


_ALL_AXES = [tuple(range(n)) for n in range(65)]  # NumPy's arrays have at most 64 dimensions


def _reduction(primitive: Any) -> Any:
    def reduction(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
        if x.__class__ in TENSORS:
            shape = x.array.shape
        else:
            x = x if hasattr(x, "shape") else np.asarray(x)
            shape = x.shape
        axes = _ALL_AXES[len(shape)] if axis is None else normal_axes(axis, len(shape))
        return primitive(x, options=(axes, keepdims, shape))

    return reduction


sum = _reduction(_sum_op)
sum.__doc__ = """The sum over axes. Over a sharded dimension it is Partial. Adjoint: the cotangent, repeated."""
mean = _reduction(_mean_op)
mean.__doc__ = """The mean over axes; refused over a sharded dimension, where a local mean is not the global one."""
max = _reduction(_max_op)
max.__doc__ = """The largest over axes; at a tie the winners share the cotangent equally."""
min = _reduction(_min_op)
min.__doc__ = """The smallest over axes; at a tie the winners share the cotangent equally."""


def argmax(x: Any, axis: int | None = None) -> Any:
    """Index of the largest; it has no derivative."""
    ndim = len((x.array if hasattr(x, "tape") else x).shape)
    return _argmax_op(x, options=(normal_axes(axis, ndim), False, None))


