"""Sums, means, extremes. The options of each are (axes, keepdims, shape of the operand)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..engine.primitive import op
from ..engine.tensor import TENSORS, Tensor
from ..errors import ShapeError
from ..layouts.layout import Mix, Sum
from .arguments import operand, refusal, tensors_in
from .shape import broadcast_to, expand_dims

Axes = tuple[int, ...]


def normal_axes(axis: int | Sequence[int] | None, ndim: int) -> Axes:
    """Axes as a sorted tuple of non-negative integers; ValueError-like ShapeError outside the range."""
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
    return sum(dx * share, axes, keepdims=keepdims)


_max_op = op(
    "max", "N", lambda x, axes, keepdims, shape: np.max(x, axis=axes, keepdims=keepdims), _extreme_rule,
    saves="y0", dims=_dims(lambda i: Mix), operands="x", tangent=(_extreme_tangent,),
)  # fmt: skip
_min_op = op(
    "min", "N", lambda x, axes, keepdims, shape: np.min(x, axis=axes, keepdims=keepdims), _extreme_rule,
    saves="y0", dims=_dims(lambda i: Mix), operands="x", tangent=(_extreme_tangent,),
)  # fmt: skip


def _place(function: Any) -> Any:
    def place(x: Any, axes: Axes, keepdims: bool, shape: Any) -> Any:
        y = function(x, axis=axes[0] if len(axes) == 1 else None)
        return y if not keepdims else np.reshape(y, _kept(x.shape, axes))

    return place


def _without(name: str, function: Any) -> Any:
    return op(name, "S", function, (None,), dims=_dims(lambda i: Mix), operands="x")


_argmax_op = _without("argmax", _place(np.argmax))
_argmin_op = _without("argmin", _place(np.argmin))
_all_op = _without("all", lambda x, axes, keepdims, shape: np.all(x, axis=axes, keepdims=keepdims))
_any_op = _without("any", lambda x, axes, keepdims, shape: np.any(x, axis=axes, keepdims=keepdims))
_count_op = _without("count_nonzero", lambda x, axes, keepdims, shape: np.sum(x != 0, axis=axes, keepdims=keepdims))


_ALL_AXES = [tuple(range(n)) for n in range(65)]  # NumPy's arrays have at most 64 dimensions


def _reduced(primitive: Any, plain: Any, x: Any, axis: Any, keepdims: Any, dtype: Any, words: Any) -> Any:
    """What is not the plain call of a Tensor: arrays, lists, another dtype, words that only NumPy knows."""
    if x.__class__ not in TENSORS:
        if isinstance(x, list | tuple) and tensors_in(x):
            x = operand(x)
        else:
            if dtype is not None:
                words["dtype"] = dtype
            return plain(x, axis=axis, keepdims=keepdims, **{k: v for k, v in words.items() if v is not None})
    words = {k: v for k, v in words.items() if v is not None}
    if words:
        raise refusal(plain.__name__, words)
    x = x if dtype is None else x.astype(dtype)
    return primitive(x, options=(normal_axes(axis, len(x.array.shape)), bool(keepdims), x.array.shape))


def _sum_like(primitive: Any, plain: Any) -> Any:
    def reduction(
        a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False, **words: Any
    ) -> Any:
        if a.__class__ in TENSORS and dtype is None and out is None and not words:
            shape = a.array.shape
            axes = _ALL_AXES[len(shape)] if axis is None else normal_axes(axis, len(shape))
            return primitive(a, options=(axes, keepdims, shape))
        return _reduced(primitive, plain, a, axis, keepdims, dtype, {**words, "out": out})

    return reduction


def _max_like(primitive: Any, plain: Any) -> Any:
    def reduction(a: Any, axis: Any = None, out: Any = None, keepdims: bool = False, **words: Any) -> Any:
        if a.__class__ in TENSORS and out is None and not words:
            shape = a.array.shape
            axes = _ALL_AXES[len(shape)] if axis is None else normal_axes(axis, len(shape))
            return primitive(a, options=(axes, keepdims, shape))
        return _reduced(primitive, plain, a, axis, keepdims, None, {**words, "out": out})

    return reduction


sum = _sum_like(_sum_op, np.sum)
sum.__doc__ = """The sum over axes. Over a sharded dimension it is Partial. Adjoint: the cotangent, repeated."""
mean = _sum_like(_mean_op, np.mean)
mean.__doc__ = """The mean over axes; refused over a sharded dimension, where a local mean is not the global one."""
max = _max_like(_max_op, np.max)
max.__doc__ = """The largest over axes; at a tie the winners share the cotangent equally."""
min = _max_like(_min_op, np.min)
min.__doc__ = """The smallest over axes; at a tie the winners share the cotangent equally."""


def _argument(primitive: Any, plain: Any) -> Any:
    def argument(a: Any, axis: int | None = None, out: Any = None, *, keepdims: bool = False) -> Any:
        if a.__class__ not in TENSORS:
            return plain(a, axis=axis, out=out, keepdims=keepdims)
        ndim = len(a.array.shape)
        return primitive(a, options=(normal_axes(axis, ndim), keepdims, None))

    return argument


argmax = _argument(_argmax_op, np.argmax)
argmax.__doc__ = """Index of the largest; it has no derivative."""
argmin = _argument(_argmin_op, np.argmin)
argmin.__doc__ = """Index of the smallest; it has no derivative."""
all = _max_like(_all_op, np.all)
all.__doc__ = """Whether all elements are true; it has no derivative."""
any = _max_like(_any_op, np.any)
any.__doc__ = """Whether some element is true; it has no derivative."""
count_nonzero = _max_like(_count_op, np.count_nonzero)
count_nonzero.__doc__ = """How many elements are not zero; it has no derivative."""
