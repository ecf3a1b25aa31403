"""Reductions over axes: sum, mean, max, min, argmax, argmin, all, any and count_nonzero.

The options of every operation here are (axes, keepdims, shape of the operand).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..arrays.capture import recorded
from ..arrays.device import is_inexact
from ..arrays.half import in_float32, total
from ..engine.events import listeners
from ..engine.primitive import op
from ..engine.state import state
from ..engine.tensor import TENSORS, Tensor
from ..errors import LayoutError, find_site, refused, typed_errors
from ..kernels import on_device
from ..layouts.layout import Mix, Shard, Sum
from ..layouts.messages import describe
from ..layouts.partition import require_agreed
from ..layouts.sizes import Size
from .arguments import (
    Axes,
    ask,
    axes_of_number,
    is_discrete,
    is_free,
    named,
    normal_axes,
    normal_axis,
    of_rank_numbers,
    on_values,
    operand,
    refusal,
    renamed,
    run_plain,
    tensors_in,
)
from .shape import broadcast_to, expand_dims, sharded_extents

__all__ = ["all", "any", "argmax", "argmin", "count_nonzero", "max", "mean", "min", "sum"]


def _keepdims_shape(shape: tuple[int, ...], axes: Axes) -> tuple[int, ...]:
    return tuple(1 if i in axes else n for i, n in enumerate(shape))


def _with_kept_dims(y: Any, axes: Axes, shape: tuple[int, ...]) -> Any:
    """A reduced value with the reduced axes as dimensions of extent 1."""
    return y if len(y.shape) == len(shape) else expand_dims(y, axes)


def reduction_dims(entry: Any) -> Any:
    """The dimension rule of a reduction; ``entry(i)`` says what becomes of the reduced dimension i."""

    def dims(shapes: Sequence[tuple[int, ...]], options: Any) -> Any:
        axes, keepdims, _ = options
        result, at = [], 0
        for i in range(len(shapes[0])):
            result.append(entry(i) if i in axes else at)
            at += bool(keepdims or i not in axes)
        return [tuple(result)]

    return dims


def broadcast_back(ct: Any, axes: Axes, shape: tuple[int, ...]) -> Any:
    """The cotangent of a reduced value, broadcast to the operand's shape."""
    if isinstance(ct, _HOST):
        # for a small array a new filled one is cheaper than a view, and needs no copy to be accumulated into
        if len(axes) == len(shape) and math.prod(shape) <= 4096:
            full = np.empty_like(ct, shape=shape)
            full[...] = ct
            return full
        return np.broadcast_to(ct.reshape(_keepdims_shape(shape, axes)), shape)
    return broadcast_to(_with_kept_dims(ct, axes, shape), shape)


_HOST = (np.ndarray, np.generic)


def _sum(x: Any, axes: Axes, keepdims: bool, shape: Any) -> Any:
    if x.__class__ is np.ndarray:
        return total(x, axes, keepdims)
    if len(axes) == len(x.shape) - 1 > 0 and x.shape[-1] > 1 and axes == _ALL_AXES[len(axes)]:  # the sums of columns
        kernels = on_device("biases", x)
        y = None if kernels is None else kernels.column_sums(x)
        if y is not None:
            return y.reshape(_keepdims_shape(x.shape, axes)) if keepdims else y
    return np.sum(x, axis=axes, keepdims=keepdims)


_sum_op = op(
    "sum", "a", _sum, lambda ct, y, x, axes, keepdims, shape: broadcast_back(ct, axes, shape), dims=reduction_dims(Sum)
)


def require_whole(caller: str, x: Any, axes: Iterable[int]) -> None:
    """Raise LayoutError if a dimension along which `caller` mixes is sharded."""
    if x.__class__ not in TENSORS or x.layout is None or not x.layout.special:
        return
    for axis, label in x.layout.items():
        if type(label) is Shard and label.dim in axes:
            raise LayoutError(
                f"{caller}(x: {describe(x.array, x.array.shape, x.layout)})\n  axis {axis!r}: x is {label!r}, and "
                f"{caller} mixes along dimension {label.dim}: each rank would use only its own part\n"
                f"  fix: all_gather(x, {axis!r}, dim={label.dim})   (a gather forward, a reduce-scatter in backward)"
            )


_mean_op = op(
    "mean", "a", in_float32(lambda x, axes, keepdims, shape: np.mean(x, axis=axes, keepdims=keepdims)),
    lambda ct, y, x, axes, keepdims, shape: broadcast_back(
        ct * (1.0 / (math.prod(shape[i] for i in axes) or 1)), axes, shape),
    dims=reduction_dims(lambda i: Mix),
)  # fmt: skip


def _extremum_adjoint(ct: Any, y: Any, x: Any, axes: Axes, keepdims: bool, shape: tuple[int, ...]) -> Any:
    # at a tie all maximal elements share the cotangent equally
    return broadcast_back(ct, axes, shape) * _share(x == _with_kept_dims(y, axes, shape), axes, x.dtype)


def _share(winners: Any, axes: Axes, dtype: Any) -> Any:
    """A mask divided by the number of its true elements over the axes."""
    raw = winners.array if hasattr(winners, "layout") else winners
    shared = recorded(_divided, raw, axes, dtype, name="share of a maximum")
    return Tensor(shared, winners.layout) if hasattr(winners, "layout") else shared


def _divided(winners: Any, axes: Axes, dtype: Any) -> Any:
    return (winners / np.sum(winners, axis=axes, keepdims=True)).astype(dtype)


def _extremum_tangent(dx: Any, y: Any, x: Any, axes: Axes, keepdims: bool, shape: tuple[int, ...]) -> Any:
    share = _share(x == _with_kept_dims(y, axes, shape), axes, x.dtype)
    return sum(dx * share, axes, keepdims=keepdims)


_max_op = op(
    "max", "N", lambda x, axes, keepdims, shape: np.max(x, axis=axes, keepdims=keepdims), _extremum_adjoint,
    saves="y0", dims=reduction_dims(lambda i: Mix), tangent=(_extremum_tangent,), degree=1,
)  # fmt: skip
_min_op = op(
    "min", "N", lambda x, axes, keepdims, shape: np.min(x, axis=axes, keepdims=keepdims), _extremum_adjoint,
    saves="y0", dims=reduction_dims(lambda i: Mix), tangent=(_extremum_tangent,), degree=1,
)  # fmt: skip


def _without_derivative(name: str, function: Any) -> Any:
    return op(name, "S", function, (None,), dims=reduction_dims(lambda i: Mix))


_all_op = _without_derivative("all", lambda x, axes, keepdims, shape: np.all(x, axis=axes, keepdims=keepdims))
_any_op = _without_derivative("any", lambda x, axes, keepdims, shape: np.any(x, axis=axes, keepdims=keepdims))
_count_op = _without_derivative(
    "count_nonzero", lambda x, axes, keepdims, shape: np.sum(x != 0, axis=axes, keepdims=keepdims)
)


_ALL_AXES = [tuple(range(n)) for n in range(65)]  # NumPy's arrays have at most 64 dimensions


def _as_numpys(name: str, axis: Any, keepdims: Any, words: dict[str, Any]) -> dict[str, Any]:
    """The options of a reduction under NumPy's names; torch's are `dim` and `keepdim`."""
    found = {"axis": axis, "keepdims": keepdims}
    if words:
        by_place = ("axis",) * (axis is not None) + ("keepdims",) * (keepdims is not False)
        found |= renamed(name, words, by_place)
    return found


def _reduce_general(primitive: Any, plain: Any, x: Any, axis: Any, keepdims: Any, out: Any, words: Any) -> Any:
    """The slow path of a reduction: arrays, lists, ``dtype=``, and arguments that only NumPy's or torch's has."""
    words = _as_numpys(plain.__name__, axis, keepdims, words if out is None else {**words, "out": out})
    try:
        if x.__class__ not in TENSORS:
            if not (isinstance(x, list | tuple) and tensors_in(x)):
                return of_rank_numbers(plain, (x,), words)
            x = operand(x)
        if "out" in words:
            raise refusal(plain.__name__, words)
        if state.grid is None and not (listeners and state.recorder is None) and is_free((x, *words.values())):
            return on_values(plain, (x,), words)
        discrete = is_discrete(ask(plain, (x,), words))  # raises what NumPy raises
        if words.get("where", True) is not True or words.get("initial") is not None:
            raise refusal(plain.__name__, words)
        if discrete and is_inexact(x.dtype) and x.layout is None:
            return on_values(plain, (x,), words)
    except RecursionError as error:  # as of a list that contains itself
        raise refused(error, plain.__name__, (x,), words) from error
    x = x.astype(words["dtype"]) if "dtype" in words else x
    return primitive(x, options=(_axes(primitive, words["axis"], x.ndim), bool(words["keepdims"]), x.array.shape))


def _mean(x: Any, *, options: tuple[Axes, bool, tuple[int, ...]]) -> Any:
    """The mean of a Tensor. Over a sharded dimension it is this rank's sum divided by the global count, Partial."""
    if x.layout is not None and x.layout.special:
        axes, _, shape = options
        parts = sharded_extents(x)
        if not parts.keys().isdisjoint(axes):
            require_agreed(x.layout, shape, "mean")
            count = math.prod(parts.get(i, int(shape[i])) for i in axes)
            return _sum_op(x, options=options) / Size(count, counts="all")
    y = _mean_op(x, options=options)
    if state.distribution.notes_lines and (recording := state.recording) is not None and y.tape is recording:
        recording.note(y.node, None, find_site())
    return y


def _axes(primitive: Any, axis: Any, ndim: int) -> Axes:
    """The reduced axes. NumPy takes the axes 0 and -1 of a number, but not for its mean."""
    return normal_axes(axis, ndim) if ndim or primitive is _mean else axes_of_number(axis)


def _with_dtype_argument(primitive: Any, plain: Any, summary: str) -> Any:
    def reduction(
        a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False, **words: Any
    ) -> Any:
        if a.__class__ in TENSORS and dtype is None and out is None and not words and keepdims.__class__ is bool:
            shape = a.array.shape
            axes = (
                _ALL_AXES[len(shape)] if axis is None
                else normal_axes(axis, len(shape)) if shape else _axes(primitive, axis, 0)
            )  # fmt: skip
            return primitive(a, options=(axes, keepdims, shape))
        words |= {} if dtype is None else {"dtype": dtype}
        return _reduce_general(primitive, plain, a, axis, keepdims, out, words)

    return named(reduction, plain, summary)


def _without_dtype_argument(primitive: Any, plain: Any, summary: str) -> Any:
    def reduction(a: Any, axis: Any = None, out: Any = None, keepdims: bool = False, **words: Any) -> Any:
        if a.__class__ in TENSORS and out is None and not words and keepdims.__class__ is bool:
            shape = a.array.shape
            axes = (
                _ALL_AXES[len(shape)] if axis is None
                else normal_axes(axis, len(shape)) if shape else _axes(primitive, axis, 0)
            )  # fmt: skip
            return primitive(a, options=(axes, keepdims, shape))
        return _reduce_general(primitive, plain, a, axis, keepdims, out, words)

    return named(reduction, plain, summary)


sum = _with_dtype_argument(_sum_op, np.sum, """Return the sum over axes. Over a sharded dimension it is Partial.

Adjoint: the cotangent, broadcast.
""")
mean = _with_dtype_argument(_mean, np.mean, """Return the mean over axes.

Over a sharded dimension it is Partial: the sum of this rank's part, divided by the number of elements of the whole. The
ranks must have agreed on its extent. Adjoint: the cotangent divided by the number of elements, broadcast.
""")
max = _without_dtype_argument(
    _max_op, np.max, "Return the maximum over axes. At a tie the maximal elements share the cotangent equally."
)
min = _without_dtype_argument(
    _min_op, np.min, "Return the minimum over axes. At a tie the minimal elements share the cotangent equally."
)
all = _without_dtype_argument(_all_op, np.all, "Return whether all elements are true. It has no derivative.")
any = _without_dtype_argument(_any_op, np.any, "Return whether at least one element is true. It has no derivative.")
count_nonzero = _without_dtype_argument(
    _count_op, np.count_nonzero, "Return the number of nonzero elements. It has no derivative."
)


def _index_reduction(plain: Any, summary: str) -> Any:
    primitive = _without_derivative(
        plain.__name__,
        lambda x, axes, keepdims, shape: plain(x, axis=axes[0] if len(axes) == 1 else None, keepdims=keepdims),
    )

    def reduction(
        a: Any, axis: int | None = None, out: Any = None, *, keepdims: bool = False, **words: Any
    ) -> Any:
        if words:
            words = _as_numpys(plain.__name__, axis, keepdims, words)
            if not words.keys() <= {"axis", "keepdims"}:
                return run_plain(plain, (a,), {"out": out, **words})  # raises what NumPy raises
            return reduction(a, out=out, **words)
        if a.__class__ not in TENSORS:
            return plain(a, axis=axis, out=out, keepdims=keepdims)
        if out is not None:
            raise refusal(plain.__name__, {"out": out})
        ndim = len(a.array.shape)
        if axis is None or axis.__class__ is bool:
            axes = normal_axes(axis, ndim)
        else:
            axes = (normal_axis(axis, ndim),) if ndim else axes_of_number(axis)
        return primitive(a, options=(axes, bool(keepdims), None))

    return named(typed_errors(reduction), plain, summary)


argmax = _index_reduction(np.argmax, "Return the index of the first maximum. It has no derivative.")
argmin = _index_reduction(np.argmin, "Return the index of the first minimum. It has no derivative.")
