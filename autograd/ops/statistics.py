"""Products, cumulative sums and products, variance, average, and the reductions that ignore nan."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ..arrays.capture import decided
from ..arrays.device import is_inexact, to_host
from ..arrays.half import in_float32
from ..arrays.shape_only import Shaped
from ..engine.primitive import Primitive, op
from ..errors import NotDifferentiable
from ..layouts.inference import broadcast
from ..layouts.layout import Mix
from .arguments import computed, instead_of, made_like, normal_axes, normal_axis, operand, raw
from .elementwise import conj, divide, over, real, where
from .reductions import broadcast_back, max, mean, min, reduction_dims, require_whole, sum
from .shape import (
    common_shape,
    concatenate,
    expand_dims,
    mixed_axis_dims,
    moveaxis,
    ravel,
    repeated_to,
    reshape,
    transpose,
)
from .ufuncs import isnan

__all__ = [
    "average", "cumprod", "cumsum", "cumulative_prod", "cumulative_sum", "nancumprod", "nancumsum", "nanmax",
    "nanmean", "nanmin", "nanprod", "nanstd", "nansum", "nanvar", "prod", "std", "var",
]  # fmt: skip

def count_of(shape: Sequence[int], axes: Sequence[int]) -> int:
    """The number of elements that a reduction over `axes` combines into one."""
    return math.prod(shape[i] for i in axes)


# -- products. Without zeros the cotangent of x_i is ct * prod(x) / x_i. With zeros the product of the other elements
#    is computed directly, so that derivatives of every order are exact there too ------------------------------------


def _has_zero(x: Any) -> bool:
    x = raw(x)
    if isinstance(x, np.ndarray | np.generic):
        return not decided(np.all, x)
    if type(x) is Shaped:
        return False
    return not is_quickly_read(x) or bool(to_host((x == 0).sum()))


def is_quickly_read(x: Any) -> bool:
    """Whether a property of an array's values is worth its test in a rule.

    On a device the test waits for the device, so small arrays take the general rule untested.
    """
    return isinstance(x, np.ndarray | np.generic | Shaped) or x.size > 4096


def _with_one_replaced(x: Any) -> Any:
    """Copies of the last dimension, with 1 in place of element i in copy i: shape (..., n, n)."""
    return where(made_like(partial(np.eye, x.shape[-1], dtype=bool), x), 1, expand_dims(x, -2))


def _prod_adjoint(ct: Any, y: Any, x: Any, axes: Any, keepdims: bool, shape: tuple[int, ...]) -> Any:
    if count_of(shape, axes) == 1:
        return broadcast_back(ct, axes, shape)
    if not _has_zero(x):
        return broadcast_back(ct * y, axes, shape) / x
    free = [i for i in range(len(shape)) if i not in axes]
    order = (*free, *axes)
    flat = reshape(transpose(x, order), (*(shape[i] for i in free), count_of(shape, axes)))
    products = prod(_with_one_replaced(flat), -1)
    back = transpose(reshape(products, tuple(shape[i] for i in order)), tuple(int(i) for i in np.argsort(order)))
    return broadcast_back(ct, axes, shape) * back


_prod_op: Primitive = op(
    "prod", "N", in_float32(lambda x, axes, keepdims, shape: np.prod(x, axis=axes, keepdims=keepdims)), _prod_adjoint,
    saves="y0", dims=reduction_dims(lambda i: Mix),
)  # fmt: skip


@instead_of(np.prod, in_float32=True)
def prod(a: Any, axis: Any = None, dtype: Any = None, out: None = None, keepdims: bool = False) -> Any:
    """Return the product over axes.

    Adjoint: the cotangent times the product of the other elements, exact where elements are zero.
    """
    a = operand(a)
    a = a if dtype is None else a.astype(dtype)
    return _prod_op(a, options=(normal_axes(axis, a.ndim), keepdims, tuple(map(int, raw(a).shape))))


# -- cumulative sums and products ------------------------------------------------------------------------------------

def _reversed(x: Any, axis: int) -> Any:
    return x[(slice(None),) * axis + (slice(None, None, -1),)]


def _cumsum_adjoint(ct: Any, y: Any, x: Any, axis: int) -> Any:
    return _reversed(_cumsum_op(_reversed(ct, axis), options=(axis,)), axis)


_cumsum_op: Primitive = op(
    "cumsum", "a", in_float32(lambda x, axis: np.cumsum(x, axis=axis)), _cumsum_adjoint, dims=mixed_axis_dims
)


def _cumprod_adjoint(ct: Any, y: Any, x: Any, axis: int) -> Any:
    if not _has_zero(x):
        return _cumsum_adjoint(ct * y, None, None, axis) / x
    ct, x = moveaxis(ct, axis, -1), moveaxis(x, axis, -1)
    n = x.shape[-1]
    products = _cumprod_op(_with_one_replaced(x), options=(x.ndim,))  # [i, k]: x_0 ... x_k without x_i
    includes = made_like(partial(np.tri, n, dtype=bool), x).T  # [i, k]: y_k has the factor x_i
    return moveaxis(sum(where(includes, products, 0) * expand_dims(ct, -2), axis=-1), -1, axis)


_cumprod_op: Primitive = op(
    "cumprod", "N", in_float32(lambda x, axis: np.cumprod(x, axis=axis)), _cumprod_adjoint, saves="y0",
    dims=mixed_axis_dims,
)  # fmt: skip


def _cumulative(primitive: Primitive, a: Any, axis: int | None, dtype: Any) -> Any:
    a = operand(a) if dtype is None else operand(a).astype(dtype)
    if axis is None or a.ndim == 0:
        a, axis = ravel(a), axis or 0
    return primitive(a, options=(normal_axis(axis, a.ndim),))


@instead_of(np.cumsum, in_float32=True)
def cumsum(a: Any, axis: int | None = None, dtype: Any = None, out: None = None) -> Any:
    """Return the cumulative sum along an axis, or of all elements. Adjoint: the cumulative sum from the end."""
    return _cumulative(_cumsum_op, a, axis, dtype)


@instead_of(np.cumprod, in_float32=True)
def cumprod(a: Any, axis: int | None = None, dtype: Any = None, out: None = None) -> Any:
    """Return the cumulative product along an axis, or of all elements. Its derivative is exact at zeros too."""
    return _cumulative(_cumprod_op, a, axis, dtype)


def _cumulated(y: Any, first: float, axis: int | None, include_initial: bool) -> Any:
    """A cumulative sum or product, with its neutral element in front if that is wanted."""
    if not include_initial:
        return y
    at = 0 if axis is None else normal_axis(axis, y.ndim)
    shape = tuple(1 if i == at else n for i, n in enumerate(raw(y).shape))
    return concatenate([made_like(partial(np.full, shape, first, y.dtype), y), y], at)


@instead_of(np.cumulative_sum, in_float32=True)
def cumulative_sum(x: Any, /, *, axis: int | None = None, dtype: Any = None, out: None = None,
                   include_initial: bool = False) -> Any:  # fmt: skip
    """Return the cumulative sum along an axis, which only one-dimensional arrays may omit.

    Adjoint: the sums of the cotangent from each element to the end.
    """
    return _cumulated(cumsum(x, axis, dtype), 0, axis, include_initial)


@instead_of(np.cumulative_prod, in_float32=True)
def cumulative_prod(x: Any, /, *, axis: int | None = None, dtype: Any = None, out: None = None,
                    include_initial: bool = False) -> Any:  # fmt: skip
    """Return the cumulative product along an axis, which only one-dimensional arrays may omit.

    Adjoint: that of `cumprod`.
    """
    return _cumulated(cumprod(x, axis, dtype), 1, axis, include_initial)


# -- variances -------------------------------------------------------------------------------------------------------
@instead_of(np.var, checked=2, in_float32=True)
def var(
    a: Any, axis: Any = None, dtype: Any = None, out: None = None, ddof: float = 0, keepdims: bool = False, *,
    mean: Any = None, correction: float | None = None,
) -> Any:  # fmt: skip
    """Return the variance over axes: the sum of ``|x - mean(x)|**2`` divided by ``n - ddof``.

    Adjoint: ``ct * 2 (x - mean(x)) / (n - ddof)``.
    """
    a = operand(a) if dtype is None else _cast_for_variance(operand(a), dtype)
    axes = normal_axes(axis, a.ndim)
    require_whole("var", a, axes)
    square = _squared_magnitude(a - (_mean(a, axes, keepdims=True) if mean is None else mean))
    n = count_of(raw(a).shape, axes)
    freedom = np.maximum(n - (ddof if correction is None else correction), 0)
    if n:
        y = _mean(square, axes, keepdims=bool(keepdims)) * (float(n / freedom) if freedom else np.inf)
    else:
        y = sum(square, axes, keepdims=bool(keepdims)) / float(freedom)
    return y if dtype is None else y.astype(dtype)


def _cast_for_variance(a: Any, dtype: Any) -> Any:
    if a.dtype.kind == "c" and np.dtype(dtype).kind != "c":
        raise NotDifferentiable(
            f"a variance of complex numbers with dtype={dtype!r}: NumPy drops the imaginary part of the mean. Fix: "
            "leave dtype out"
        )
    return a.astype(dtype)


_mean = mean  # inside `var`, `mean` is a parameter


def _squared_magnitude(x: Any) -> Any:
    return real(x * conj(x)) if x.dtype.kind == "c" else x * x


@instead_of(np.std, checked=2, in_float32=True)
def std(
    a: Any, axis: Any = None, dtype: Any = None, out: None = None, ddof: float = 0, keepdims: bool = False, *,
    mean: Any = None, correction: float | None = None,
) -> Any:  # fmt: skip
    """Return the standard deviation, the square root of `var`. Where it is 0 its derivative is taken as 0."""
    correction = ddof if correction is None else correction
    y = var.__wrapped__(a, axis, dtype, None, correction, keepdims, mean=mean)
    a = operand(a)
    if mean is None and not correction and count_of(raw(a).shape, normal_axes(axis, a.ndim)) == 1:
        return y  # of one element both are 0, with all their derivatives
    return root(y)


root = op("root", "N", np.sqrt, lambda ct, y, x: over(ct * 0.5, y), saves="y", dims=broadcast)
"""The square root of nonnegative numbers, with derivative 0 at 0."""


@instead_of(np.average, in_float32=True)
def average(a: Any, axis: Any = None, weights: Any = None, returned: bool = False, *, keepdims: bool = False) -> Any:
    """Return the weighted mean over axes. Both the values and the weights have derivatives."""
    a = operand(a)
    axis = tuple(axis) if isinstance(axis, list) else axis  # as NumPy's, which takes lists here
    if weights is None:
        y = mean(a, axis, keepdims=keepdims)
        if not returned:
            return y
        require_whole("average(returned=True)", a, normal_axes(axis, a.ndim))
        count = count_of(raw(a).shape, normal_axes(axis, a.ndim))
        return y, made_like(partial(np.full, raw(y).shape, count, y.dtype), y)
    weights = computed(weights)
    weights = weights.astype(np.result_type(a.dtype if is_inexact(a.dtype) else float, weights.dtype))
    if weights.ndim != a.ndim:
        (at,) = normal_axes(axis, a.ndim)
        weights = reshape(weights, tuple(n if i == at else 1 for i, n in enumerate(a.shape)))
    total = sum(weights, axis, keepdims=keepdims)
    y = divide(sum(a * weights, axis, keepdims=keepdims), total)
    return (y, repeated_to(total, common_shape(total.shape, y.shape))) if returned else y


# -- ignoring nan ----------------------------------------------------------------------------------------------------
def _replace_nan(a: Any, value: float) -> tuple[Any, Any]:
    missing = isnan(a)
    return where(missing, value, a), missing


def _count_present(missing: Any, like: Any, axis: Any, keepdims: bool) -> Any:
    return sum((~missing).astype(like.dtype.type(0).real.dtype), axis, keepdims=keepdims)


@instead_of(np.nansum, in_float32=True)
def nansum(a: Any, axis: Any = None, dtype: Any = None, out: None = None, keepdims: bool = False) -> Any:
    """Return the sum over axes, ignoring nan. Adjoint: the cotangent, broadcast, and 0 for nan."""
    return sum(_replace_nan(operand(a), 0)[0], axis, dtype, keepdims=keepdims)


@instead_of(np.nanprod, in_float32=True)
def nanprod(a: Any, axis: Any = None, dtype: Any = None, out: None = None, keepdims: bool = False) -> Any:
    """Return the product over axes, ignoring nan. Adjoint: that of `prod`, and 0 for nan."""
    return prod(_replace_nan(operand(a), 1)[0], axis, dtype, keepdims=keepdims)


@instead_of(np.nanmax)
def nanmax(a: Any, axis: Any = None, out: None = None, keepdims: bool = False) -> Any:
    """Return the maximum over axes, ignoring nan. Adjoint: that of `max`, and 0 for nan."""
    return max(_replace_nan(operand(a), -math.inf)[0], axis, keepdims=keepdims)


@instead_of(np.nanmin)
def nanmin(a: Any, axis: Any = None, out: None = None, keepdims: bool = False) -> Any:
    """Return the minimum over axes, ignoring nan. Adjoint: that of `min`, and 0 for nan."""
    return min(_replace_nan(operand(a), math.inf)[0], axis, keepdims=keepdims)


@instead_of(np.nancumsum, in_float32=True)
def nancumsum(a: Any, axis: int | None = None, dtype: Any = None, out: None = None) -> Any:
    """Return the cumulative sum, with 0 in place of nan. Adjoint: that of `cumsum`, and 0 for nan."""
    return cumsum(_replace_nan(operand(a), 0)[0], axis, dtype)


@instead_of(np.nancumprod, in_float32=True)
def nancumprod(a: Any, axis: int | None = None, dtype: Any = None, out: None = None) -> Any:
    """Return the cumulative product, with 1 in place of nan. Adjoint: that of `cumprod`, and 0 for nan."""
    return cumprod(_replace_nan(operand(a), 1)[0], axis, dtype)


@instead_of(np.nanmean, in_float32=True)
def nanmean(a: Any, axis: Any = None, dtype: Any = None, out: None = None, keepdims: bool = False) -> Any:
    """Return the mean over axes, ignoring nan.

    Adjoint: the cotangent divided by the number of elements that are not nan, and 0 for nan.
    """
    filled, missing = _replace_nan(operand(a), 0)
    total = sum(filled, axis, dtype, keepdims=keepdims)
    return total / _count_present(missing, total, axis, keepdims)


@instead_of(np.nanvar, in_float32=True)
def nanvar(
    a: Any, axis: Any = None, dtype: Any = None, out: None = None, ddof: float = 0, keepdims: bool = False
) -> Any:
    """Return the variance over axes, ignoring nan. Adjoint: that of `var`, and 0 for nan."""
    filled, missing = _replace_nan(operand(a), 0)
    square = _squared_magnitude(where(missing, 0, filled - nanmean(a, axis, dtype, keepdims=True)))
    if dtype is not None:
        _cast_for_variance(filled, dtype)
    total = sum(square, axis, dtype, keepdims=keepdims)
    freedom = _count_present(missing, total, axis, keepdims) - ddof
    ratio = total / freedom
    if ratio.dtype.kind == "c" and total.dtype.kind != "c":  # of a complex ddof; NumPy drops the imaginary part
        ratio = real(ratio).astype(total.dtype)
    return where(freedom > 0, ratio, np.nan)


@instead_of(np.nanstd, in_float32=True)
def nanstd(
    a: Any, axis: Any = None, dtype: Any = None, out: None = None, ddof: float = 0, keepdims: bool = False
) -> Any:
    """Return the standard deviation over axes, ignoring nan: the square root of `nanvar`.

    Adjoint: that of `std`, and 0 for nan.
    """
    return root(nanvar(a, axis, dtype, None, ddof, keepdims))
