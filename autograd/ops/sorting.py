"""Selecting elements: sort, partition, take, where, select, median, quantile, interp, unique.

The indices that select the elements are constants; a cotangent goes to the elements that were selected.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

from ..arrays.capture import decided, recorded
from ..arrays.device import arange_beside, is_array, is_inexact, move, require_one_device
from ..arrays.plain import require_plain
from ..arrays.shape_only import Shaped
from ..engine.primitive import Primitive, op
from ..engine.tensor import TENSORS
from ..errors import ArgumentError, NotDifferentiable, OptionError, ShapeError, typed, typed_errors
from ..layouts.rank_values import RANK_NUMBERS, RankInt, has_local_count, plain, rank_axes, rank_number
from .arguments import (
    axes_in_order,
    computed,
    constant_like,
    instead_of,
    labelled,
    named,
    normal_axes,
    normal_axis,
    operand,
    operands,
    option,
    raw,
    refuse_addends,
    refuse_parts,
    run_plain,
    stack,
    tensors_in,
)
from .creation import broadcast_arrays
from .elementwise import maximum as _maximum
from .elementwise import where as _where
from .indexing import add_at, taken
from .reductions import mean
from .reductions import sum as _sum
from .shape import (
    along,
    common_shape,
    concatenate,
    expand_dims,
    mixed_axis_dims,
    ravel,
    repeated_to,
    reshape,
    squeeze,
    transpose,
)
from .ufuncs import isnan, mod

__all__ = [
    "argpartition", "argsort", "choose", "compress", "extract", "interp", "median", "msort", "nanmedian",
    "partition", "percentile", "piecewise", "quantile", "select", "sort", "sort_complex", "take", "take_along_axis",
    "union1d", "unique", "unique_all", "unique_counts", "unique_inverse", "unique_values", "where",
]  # fmt: skip

_NUMBERS = frozenset({bool, int, float, complex, *RANK_NUMBERS})


# -- where -----------------------------------------------------------------------------------------------------------
def _where_of_plain(condition: Any, x: Any, y: Any) -> Any:
    """The elements where nothing is a Tensor: a Python number of Python numbers, which may differ between ranks."""
    chosen = np.where(plain(condition), plain(x), plain(y))
    numbers = isinstance(condition, bool | RankInt) and x.__class__ in _NUMBERS and y.__class__ in _NUMBERS
    axes, is_count = rank_axes((condition, x, y)), has_local_count((condition, x, y))
    return rank_number(chosen.item(), axes, is_count) if numbers or axes and not chosen.shape else chosen


def where(condition: Any, x: Any = None, y: Any = None) -> Any:
    """Return elements of `x` where the condition is true and of `y` elsewhere.

    Adjoint: the cotangent where the condition is true for `x`, and elsewhere for `y`; 0 in the other places.

    With `condition` alone, return its nonzero indices, as `numpy.nonzero` does. If all three are Python numbers the
    result is one too, so that it does not change the dtype of an array that it is combined with.
    """
    if x is None and y is None:
        try:
            return np.nonzero(condition)
        except (TypeError, ValueError) as error:  # of a number, which has no dimension
            raise typed(error, f"where: {error}") from error
    if x is None or y is None:
        raise ShapeError("where: one of x and y was given; needed: both or neither")
    if not tensors_in((condition, x, y)):
        return _where_of_plain(condition, x, y)
    condition, x, y = [operand(v) if isinstance(v, list | tuple) else v for v in (condition, x, y)]
    if condition.__class__ not in TENSORS and (condition.__class__ is not np.ndarray or condition.dtype != bool):
        require_plain(condition, "where, the condition")
    if (condition.__class__ in TENSORS or hasattr(condition, "dtype")) and condition.dtype != bool:
        condition = condition != 0 if condition.__class__ in TENSORS else recorded(operator.ne, condition, 0)
    return _where(np.asarray(condition) if isinstance(condition, bool) else condition, x, y)


@instead_of(np.select)
def select(condlist: Any, choicelist: Any, default: Any = 0) -> Any:
    """Return each element from the first choice whose condition is true there, else the default.

    Adjoint: the cotangent at the places of the elements that were taken, and 0 elsewhere.
    """
    if len(condlist) != len(choicelist):
        raise ShapeError(f"select: {len(condlist)} conditions and {len(choicelist)} choices; needed: one per condition")
    y = default
    for condition, choice in zip(reversed(condlist), reversed(choicelist), strict=True):
        y = where(condition, choice, y)
    return y


@instead_of(np.piecewise)
def piecewise(x: Any, condlist: Any, funclist: Any, *args: Any, **kw: Any) -> Any:
    """Return the values of functions (or constants), each where its condition is true.

    Adjoint: those of the functions, each where its condition is true.

    One function more than conditions is the default. Unlike NumPy, every function is called on all of `x`.
    """
    conditions = list(condlist) if isinstance(condlist, list | tuple) else [condlist]
    values = [f(x, *args, **kw) if callable(f) else f for f in funclist]
    default = values.pop() if len(values) == len(conditions) + 1 else 0
    y = where(False, x, default)  # of the shape, dtype and label of x; x * 0 is nan where x is
    for condition, value in zip(conditions, values, strict=True):
        y = where(condition, value, y)
    return y


# -- along an axis, by an index per element --------------------------------------------------------------------------
def _key_along_axis(index: Any, axis: int) -> tuple[Any, ...]:
    """The key with which ``x[key]`` is ``take_along_axis(x, index, axis)``."""
    key = []
    for i, n in enumerate(index.shape):
        shape = [1] * index.ndim
        shape[i] = n
        key.append(index if i == axis else np.reshape(arange_beside(index, n), shape))
    return tuple(key)


def _scatter(x: Any, index: Any, axis: int, shape: tuple[int, ...]) -> Any:
    if type(x) is Shaped:
        return Shaped(shape, x.dtype, x.why)
    if index.__class__ is not x.__class__:  # CuPy would copy an index on the host
        require_one_device("scatter_along_axis", x=x, index=index)
    return add_at(x, _key_along_axis(index, axis), shape)


def _take_along(x: Any, index: Any, axis: int, shape: tuple[int, ...]) -> Any:
    if index.__class__ is not x.__class__:
        require_one_device("take_along_axis", x=x, index=index)
    return np.take_along_axis(x, index, axis)


_take_along_op: Primitive = op(
    "take_along_axis", "a S", _take_along,
    (lambda ct, y, x, index, axis, shape: _scatter_op(ct, index, options=(axis, shape)), None),
    saves=("1", ""), dims=mixed_axis_dims, operands="x index",
)  # fmt: skip
_scatter_op: Primitive = op(
    "scatter_along_axis", "a S", _scatter,
    (lambda ct, y, x, index, axis, shape: _take_along_op(ct, index, options=(axis, shape)), None),
    saves=("1", ""), dims=mixed_axis_dims, operands="x index",
)  # fmt: skip


@instead_of(np.take_along_axis)
def take_along_axis(arr: Any, indices: Any, axis: int | None = -1) -> Any:
    """Return the elements at an index per element along an axis. Adjoint: the cotangent added at those indices.

    `indices` has as many dimensions as `arr`; on the other axes the two broadcast.
    """
    indices = operand(indices)
    arr, axis = along(operand(arr), axis)
    free = common_shape(*((*x.shape[:axis], 1, *x.shape[axis + 1 :]) for x in (arr, indices)))
    whole, index_shape = ((*free[:axis], x.shape[axis], *free[axis + 1 :]) for x in (arr, indices))
    arr, indices = repeated_to(arr, whole), repeated_to(indices, index_shape)
    return _take_along_op(arr, indices, options=(axis, tuple(map(int, raw(arr).shape))))


_argsort_op = op("argsort", "S", lambda x, axis, kind: np.argsort(x, axis, kind), (None,), dims=mixed_axis_dims)
_argpartition_op = op(
    "argpartition", "S", lambda x, axis, kth: np.argpartition(x, kth, axis), (None,), dims=mixed_axis_dims
)


@instead_of(np.argsort)
def argsort(a: Any, axis: int | None = -1, kind: Any = None, order: None = None, *, stable: Any = None) -> Any:
    """Return the indices that sort along an axis. They have no derivative."""
    a, axis = along(a, axis)
    return _argsort_op(a, options=(axis, "stable" if stable else kind))


@instead_of(np.argpartition)
def argpartition(a: Any, kth: Any, axis: int | None = -1, kind: str = "introselect", order: None = None) -> Any:
    """Return the indices that partition along an axis, the smallest before index `kth`. They have no derivative."""
    a, axis = along(a, axis)
    kth = option(kth, "partition", a)
    kth = int(kth) if np.ndim(kth) == 0 else tuple(int(k) for k in kth)
    return _argpartition_op(a, options=(axis, kth))


@instead_of(np.sort, checked=2)
def sort(a: Any, axis: int | None = -1, kind: Any = None, order: None = None, *, stable: Any = None) -> Any:
    """Return the elements sorted along an axis. Adjoint: each cotangent goes to the element it came from."""
    a, axis = along(operand(a), axis)
    indices = _argsort_op(a, options=(axis, "stable" if stable else kind))
    return _take_along_op(a, indices, options=(axis, tuple(map(int, raw(a).shape))))


def msort(a: Any) -> Any:
    """Return the elements sorted along the first axis. Adjoint: the elements moved back."""
    return sort(a, 0)


@instead_of(np.partition)
def partition(a: Any, kth: Any, axis: int | None = -1, kind: str = "introselect", order: None = None) -> Any:
    """Return the elements partitioned along an axis, the smallest before index `kth`. Adjoint: as for `sort`."""
    a, axis = along(operand(a), axis)
    return take_along_axis(a, argpartition(a, kth, axis), axis)


@instead_of(np.sort_complex)
def sort_complex(a: Any) -> Any:
    """Return the elements sorted by real part, then imaginary part, as complex numbers.

    Adjoint: the elements moved back.
    """
    a = operand(a)
    return sort(a if a.dtype.kind == "c" else a.astype(complex))


# -- by index --------------------------------------------------------------------------------------------------------
@instead_of(np.take, checked=math.inf)
def take(a: Any, indices: Any, axis: int | None = None, out: None = None, mode: str = "raise") -> Any:
    """Return the elements at indices along an axis, or of the flattened array without one.

    Adjoint: the cotangents added at the places of the elements that were taken.
    """
    a = operand(a)
    if axis is None:
        a, axis = ravel(a), 0
    elif axis.__class__ is bool:
        raise ArgumentError(f"take: axis={axis} was given; needed: an integer")
    ndim = len(raw(a).shape)
    if axis.__class__ is not int or not 0 <= axis < ndim:
        axis = normal_axis(axis, ndim)
    index = raw(indices)
    if index.__class__ is not np.ndarray and index.__class__ is not int:
        require_plain(index, "take, the indices")
    if index.__class__ is not np.ndarray and not is_array(index):
        index = np.asarray(index)
        index = move(index, raw(a)) if index.ndim else index
    if index.dtype.kind != "i":
        if index.size and not np.can_cast(index.dtype, np.intp):
            raise ArgumentError(f"take: indices of {index.dtype} were given; indices must be of integers")
        index = index.astype(np.intp)
    if mode.__class__ is not str or mode not in ("raise", "wrap", "clip"):
        raise OptionError(f"take: mode={mode!r} was given; needed: 'raise', 'wrap' or 'clip'")
    if mode != "raise":
        n = int(raw(a).shape[axis])
        index = index % n if mode == "wrap" else np.clip(index, 0, n - 1)
    return taken(a, (slice(None),) * axis + (index if index.ndim else int(index),), by=(indices,))


@instead_of(np.compress)
def compress(condition: Any, a: Any, axis: int | None = None, out: None = None) -> Any:
    """Return the slices along an axis where the one-dimensional condition is true.

    Adjoint: the cotangent at the places of the elements that were taken, and 0 elsewhere.
    """
    is_special = getattr(getattr(condition, "layout", None), "special", False)  # then a is to be sharded alike
    if is_special or not isinstance(raw(condition), np.ndarray | np.generic | list | tuple):
        a, axis = along(operand(a), axis)
        return a[(slice(None),) * axis + (condition != 0,)]
    index = np.flatnonzero(raw(condition))
    return take(a, labelled(move(index, raw(a)) if isinstance(condition, list | tuple) else index, condition), axis)


@instead_of(np.extract)
def extract(condition: Any, arr: Any) -> Any:
    """Return the elements where a condition is true, in one dimension.

    Adjoint: the cotangent at the places of the elements that were taken, and 0 elsewhere.
    """
    return compress(ravel(operand(condition)), ravel(operand(arr)))


@instead_of(np.choose)
def choose(a: Any, choices: Any, out: None = None, mode: str = "raise") -> Any:
    """Return at each position the element of the choice that `a` gives there.

    Adjoint: the cotangent at the places of the elements that were taken, and 0 elsewhere.
    """
    count = len(choices) if isinstance(choices, list | tuple) else int(raw(choices).shape[0])
    index, *options = broadcast_arrays(a, *operands(*(choices[i] for i in range(count))))
    at = raw(index)
    at = at.astype(np.intp) if at.dtype == bool else at
    at = at % count if mode == "wrap" else np.clip(at, 0, count - 1) if mode == "clip" else at
    return squeeze(take_along_axis(stack(options), expand_dims(labelled(at, index), 0), 0), 0)


# -- medians and quantiles -------------------------------------------------------------------------------------------
def reduced_axes_last(a: Any, axis: Any) -> tuple[Any, tuple[int, ...]]:
    """`a` with the reduced axes merged into one, the last; and these axes."""
    several = isinstance(axis, list | np.ndarray)
    axes = tuple(sorted(axes_in_order(axis, a.ndim))) if several else normal_axes(axis, a.ndim)
    free = [i for i in range(a.ndim) if i not in axes]
    shape = raw(a).shape
    count = math.prod(shape[i] for i in axes)
    return reshape(transpose(a, (*free, *axes)), (*(shape[i] for i in free), count)), axes


@instead_of(np.median, in_float32=True)
def median(a: Any, axis: Any = None, out: None = None, overwrite_input: bool = False, keepdims: bool = False) -> Any:
    """Return the median over axes: the middle element, or the mean of the two middle elements.

    Adjoint: the cotangent at the place of the middle element, halved where there are two.
    """
    flat, axes = reduced_axes_last(operand(a), axis)
    n = int(raw(flat).shape[-1])
    ordered = sort(flat)
    (y,) = _nan_where_any_is(ordered, [mean(ordered[..., (n - 1) // 2 : n // 2 + 1], -1)])
    return expand_dims(y, axes) if keepdims else y


@instead_of(np.nanmedian, in_float32=True)
def nanmedian(a: Any, axis: Any = None, out: None = None, overwrite_input: bool = False, keepdims: bool = False) -> Any:
    """Return the median over axes, ignoring nan. Adjoint: that of `median`, and 0 for nan."""
    flat, axes = reduced_axes_last(operand(a), axis)
    if raw(flat).shape[-1]:
        ordered = sort(flat)  # nan is last
        count = _sum((~isnan(flat)).astype(int), -1, keepdims=True)
        middle = [take_along_axis(ordered, at, -1) for at in (_maximum(count - 1, 0) // 2, count // 2)]
        y = squeeze((middle[0] + middle[1]) * 0.5, -1)
    else:
        y = _sum(flat, -1) + np.nan
    return expand_dims(y, axes) if keepdims else y


def _nan_where_any_is(ordered: Any, found: list[Any]) -> list[Any]:
    """`found`, computed from sorted elements, with NaN where one of these is: the last is, then."""
    values = raw(ordered)
    if type(values) is Shaped or not values.shape[-1]:
        return found
    if isinstance(values, np.ndarray) and not decided(_has_nan_at_end, values):  # a device's values stay there
        return found
    last = ordered[..., -1]
    return [_where(isnan(last), last, y) for y in found]


def _has_nan_at_end(values: Any) -> bool:
    return bool(np.isnan(values[..., -1]).any())


@instead_of(np.quantile, in_float32=True)
def quantile(a: Any, q: Any, axis: Any = None, out: None = None, overwrite_input: bool = False,
             method: str = "linear", keepdims: bool = False) -> Any:  # fmt: skip
    """Return quantiles over axes, with linear interpolation between elements.

    Raises
    ------
    NotDifferentiable
        Another `method`, or a `q` that a tape records: neither has a derivative here.
    """
    if method != "linear":
        raise NotDifferentiable(f"quantile(method={method!r}) has no derivative here; needed: method='linear'")
    q = option(q, "quantile", a)
    flat, axes = reduced_axes_last(operand(a), axis)
    ordered = sort(flat if np.ndim(q) == 0 else flat.astype(np.result_type(flat.dtype, np.float64)))
    at = np.asarray(q, float) * (int(raw(flat).shape[-1]) - 1)
    if not at.size:
        return constant_like(np.quantile(np.zeros(raw(a).shape, ordered.dtype), at, axis, keepdims=bool(keepdims)), a)
    low = np.floor(at).astype(int)
    found = [_interpolated(ordered, int(k), float(t - k)) for t, k in zip(at.flat, low.flat, strict=True)]
    found = [expand_dims(y, axes) if keepdims else y for y in _nan_where_any_is(ordered, found)]
    if at.ndim == 0:
        return found[0]
    y = reshape(stack(found), (*at.shape, *found[0].shape))
    return y.astype(np.result_type(y.dtype, np.float64))


def _interpolated(ordered: Any, k: int, t: float) -> Any:
    y = ordered[..., k]
    if t:  # the formula of NumPy, nearest to the closer element
        above = ordered[..., k + 1]
        y = y + (above - y) * t if t < 0.5 else above - (above - y) * (1 - t)
    return y


@instead_of(np.percentile, in_float32=True)
def percentile(a: Any, q: Any, axis: Any = None, out: None = None, overwrite_input: bool = False,
               method: str = "linear", keepdims: bool = False) -> Any:  # fmt: skip
    """Return percentiles over axes: ``quantile(a, q / 100)``. Adjoint: that of `quantile`."""
    return quantile(a, np.asarray(option(q, "percentile", a), float) / 100, axis, method=method, keepdims=keepdims)


@instead_of(np.interp, in_float32=True)
def interp(x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None) -> Any:
    """Return the piecewise linear interpolant through (xp, fp) at `x`. All three have derivatives."""
    x, xp, fp = computed(x), computed(xp), computed(fp)
    if period is not None:
        period = abs(period)
        x, xp = mod(x, period), mod(xp, period)
        order = recorded(np.argsort, raw(xp))
        xp, fp = taken(xp, order, by=(xp,)), taken(fp, order, by=(xp,))
        xp, fp = concatenate([xp[-1:] - period, xp, xp[:1] + period]), concatenate([fp[-1:], fp, fp[:1]])
        left = right = None
    n = int(raw(xp).shape[0])
    k, after = recorded(_intervals, raw(xp), raw(x), n)
    x0, x1, y0, y1 = (taken(v, i, by=(x, xp)) for v, i in ((xp, k), (xp, after), (fp, k), (fp, after)))
    y = (y0 + (y1 - y0) / (x1 - x0) * (x - x0)).astype(np.result_type(fp.dtype, np.float64))
    y = where(x < xp[0], fp[0] if left is None else left, y)
    return where(x > xp[n - 1], fp[n - 1] if right is None else right, y)


def _intervals(xp: Any, x: Any, n: int) -> tuple[Any, Any]:
    """The indices of the points of `xp` before each x, and after it."""
    k = np.clip(np.searchsorted(xp, x, side="right") - 1, 0, n - 2)
    return k, k + 1


# -- sets ------------------------------------------------------------------------------------------------------------
# The elements of a set are elements of the operand. Indices, counts and sets of integers have no derivative: they are
# plain arrays, and under a mesh Tensors with the labels of the operand. A set depends on all elements, so a Partial or
# sharded operand is refused. Of `intersect1d`, `setdiff1d` and `setxor1d` there is no derivative: whether an element is
# in the result at all depends on its equality with another. `numpy_protocol` refuses them, and names a selection.
def _discrete(array: Any, of: Any) -> Any:
    """Integers or booleans that were computed from `of`; under a mesh with its labels."""
    return array if getattr(of, "layout", None) is None else labelled(array, of)


def _gathered(x: Any, index: Any, axis: int | None) -> Any:
    """The elements of `x` at indices that were computed from it; integers and booleans as `_discrete` gives them."""
    if x.layout is None and not is_inexact(x.dtype):
        return np.take(x.array, index, axis)
    return take(x, _discrete(index, x), axis)


def _whole(name: str, x: Any) -> Any:
    """An operand of which this rank has all elements."""
    refuse_addends(name, (x,))
    refuse_parts(name, (x,))
    return operand(x)


@typed_errors
def unique(
    ar: Any, return_index: bool = False, return_inverse: bool = False, return_counts: bool = False,
    axis: int | None = None, *, equal_nan: bool = True, sorted: bool = True,
) -> Any | tuple[Any, ...]:  # fmt: skip
    """Return the sorted unique elements, or the unique slices along an axis.

    Adjoint: each cotangent goes to the first occurrence of its element, and 0 to the others.

    With `return_index`, `return_inverse` or `return_counts` also the indices of the first occurrences, those that
    rebuild `ar` and the numbers of occurrences, as `numpy.unique` does. They have no derivative.

    Raises
    ------
    LayoutError
        `ar` is Partial, or sharded: its unique elements depend on all parts.
    """
    words: dict[str, Any] = {"axis": axis, "equal_nan": equal_nan}
    if not sorted:
        words["sorted"] = sorted  # older versions of NumPy do not have it
    if not tensors_in((ar,)):
        theirs: Any = np.unique
        return theirs(ar, return_index, return_inverse, return_counts, **words)
    x = _whole("numpy.unique", ar)
    _, index, *others = run_plain(np.unique, (x, True, return_inverse, return_counts), words)
    values = _gathered(x, index, axis if axis is None else normal_axis(axis, x.ndim))
    found = [*([index] if return_index else []), *others]
    return (values, *(_discrete(each, x) for each in found)) if found else values


def _unique_of_standard(theirs: Any, summary: str) -> Any:
    """One of the functions of the array API standard, which return named tuples and take nan for unequal to itself."""

    @typed_errors
    def function(x: Any, /) -> Any | tuple[Any, ...]:  # a named tuple of a Tensor and arrays
        if not tensors_in((x,)):
            return theirs(x)
        x = _whole(f"numpy.{theirs.__name__}", x)
        found = run_plain(theirs, (x,), {})
        index = getattr(found, "indices", None)
        if index is None:
            _, index = run_plain(np.unique, (x, True), {"equal_nan": False})
        parts = {name: _discrete(each, x) for name, each in found._asdict().items()}
        return found._replace(**parts | {"values": _gathered(x, index, None)})

    return named(function, theirs, f"Return the unique elements{summary}.\n\nAdjoint: as of `unique`.")


unique_all = _unique_of_standard(np.unique_all, ", their first indices, the indices that rebuild `x`, and counts")
unique_counts = _unique_of_standard(np.unique_counts, " and the number of times that each occurs")
unique_inverse = _unique_of_standard(np.unique_inverse, " and the indices that rebuild `x` from them")


@typed_errors
def unique_values(x: Any, /) -> Any:
    """Return the unique elements in the order that NumPy gives them. Adjoint: as of `unique`."""
    if not tensors_in((x,)):
        return np.unique_values(x)
    x = _whole("numpy.unique_values", x)
    found = run_plain(np.unique_values, (x,), {})
    _, index = run_plain(np.unique, (x, True), {"equal_nan": False})
    return _gathered(x, index[np.argsort(np.argsort(found))], None)


@typed_errors
def union1d(ar1: Any, ar2: Any) -> Any:
    """Return the sorted elements of either array. Adjoint: to the first occurrence, which is in `ar1` if it can be."""
    if not tensors_in((ar1, ar2)):
        return np.union1d(ar1, ar2)
    return unique(concatenate([ravel(_whole("numpy.union1d", x)) for x in operands(ar1, ar2)]))
