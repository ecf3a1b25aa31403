"""Products, variances, running sums, and the forms that leave nan out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ..arrays.device import to_host
from ..arrays.shape_only import Shaped
from ..engine.primitive import Primitive, op
from ..layouts.layout import Mix
from .arguments import instead_of, made_like, operand, raw
from .elementwise import conj, divide, real, sqrt, where
from .reductions import _dims, _spread, max, mean, min, normal_axes, sum
from .shape import broadcast_to, expand_dims, moveaxis, reshape, transpose
from .ufuncs import isnan, nonzero

Shape = tuple[int, ...]


def count_of(shape: Shape, axes: Sequence[int]) -> int:
    """How many elements are reduced to one."""
    return math.prod(shape[i] for i in axes)


# -- products. Without a zero the cotangent of x_i is that of the product times product / x_i; with one, the product of
#    the others is made by itself, so that the derivative of every order is exact there too --------------------------


def _has_zero(x: Any) -> bool:
    x = raw(x)
    if isinstance(x, np.ndarray | np.generic):
        return not np.all(x)
    if type(x) is Shaped:
        return False
    return x.size <= _ASKED or bool(to_host((x == 0).sum()))  # to ask a device is to wait for it


_ASKED = 4096


def _others(x: Any) -> Any:
    """Rows of the last dimension with, in row i, 1 in the place of element i: shape (..., n, n)."""
    return where(made_like(partial(np.eye, x.shape[-1], dtype=bool), x), 1, expand_dims(x, -2))


def _prod_rule(ct: Any, y: Any, x: Any, axes: Any, keepdims: bool, shape: Shape) -> Any:
    if count_of(shape, axes) == 1:
        return _spread(ct, axes, shape)
    if not _has_zero(x):
        return _spread(ct * y, axes, shape) / x
    free = [i for i in range(len(shape)) if i not in axes]
    order = (*free, *axes)
    flat = reshape(transpose(x, order), (*(shape[i] for i in free), count_of(shape, axes)))
    products = _prod(_others(flat), (flat.ndim,), False)
    back = transpose(reshape(products, tuple(shape[i] for i in order)), tuple(int(i) for i in np.argsort(order)))
    return _spread(ct, axes, shape) * back


_prod_op: Primitive = op(
    "prod", "N", lambda x, axes, keepdims, shape: np.prod(x, axis=axes, keepdims=keepdims), _prod_rule,
    saves="y0", dims=_dims(lambda i: Mix), operands="x",
)  # fmt: skip


def _prod(x: Any, axes: Any, keepdims: bool) -> Any:
    return _prod_op(x, options=(tuple(axes), keepdims, tuple(int(n) for n in raw(x).shape)))


@instead_of(np.prod)
def prod(a: Any, axis: Any = None, dtype: Any = None, out: None = None, keepdims: bool = False) -> Any:
    """The product over axes. Adjoint: the cotangent times the product of the others, exact where some are zero."""
    a = operand(a)
    a = a if dtype is None else a.astype(dtype)
    return _prod(a, normal_axes(axis, a.ndim), keepdims)


# -- running sums and products ---------------------------------------------------------------------------------------
def _one_axis(shapes: Sequence[Shape], options: Any) -> Any:
    return [tuple(Mix if i == options[0] else i for i in range(len(shapes[0])))]


def _back(x: Any, axis: int) -> Any:
    return x[(slice(None),) * axis + (slice(None, None, -1),)]


def _cumsum_rule(ct: Any, y: Any, x: Any, axis: int) -> Any:
    return _back(_cumsum_op(_back(ct, axis), options=(axis,)), axis)


_cumsum_op: Primitive = op(
    "cumsum", "a", lambda x, axis: np.cumsum(x, axis=axis), _cumsum_rule, dims=_one_axis, operands="x",
)  # fmt: skip


def _cumprod_rule(ct: Any, y: Any, x: Any, axis: int) -> Any:
    if not _has_zero(x):
        return _cumsum_rule(ct * y, None, None, axis) / x
    ct, x = moveaxis(ct, axis, -1), moveaxis(x, axis, -1)
    n = x.shape[-1]
    products = _cumprod_op(_others(x), options=(x.ndim,))  # [i, k]: the product of the first k + 1 without x_i
    reached = made_like(lambda **on: np.triu(np.ones((n, n), bool, **on)), x)
    return moveaxis(sum(where(reached, products, 0) * expand_dims(ct, -2), axis=-1), -1, axis)


_cumprod_op: Primitive = op(
    "cumprod", "N", lambda x, axis: np.cumprod(x, axis=axis), _cumprod_rule, saves="y0", dims=_one_axis, operands="x",
)  # fmt: skip


def _running(primitive: Primitive, a: Any, axis: int | None, dtype: Any) -> Any:
    a = operand(a) if dtype is None else operand(a).astype(dtype)
    if axis is None:
        a, axis = reshape(a, (-1,)) if a.size else reshape(a, (0,)), 0
    return primitive(a, options=normal_axes(axis, a.ndim))


@instead_of(np.cumsum)
def cumsum(a: Any, axis: int | None = None, dtype: Any = None, out: None = None) -> Any:
    """The running sum along an axis, or of all elements. Adjoint: the running sum from the end."""
    return _running(_cumsum_op, a, axis, dtype)


@instead_of(np.cumprod)
def cumprod(a: Any, axis: int | None = None, dtype: Any = None, out: None = None) -> Any:
    """The running product along an axis, or of all elements; its derivative is exact where some are zero."""
    return _running(_cumprod_op, a, axis, dtype)


# -- variances -------------------------------------------------------------------------------------------------------
@instead_of(np.var)
def var(
    a: Any, axis: Any = None, dtype: Any = None, out: None = None, ddof: float = 0, keepdims: bool = False, *,
    mean: Any = None, correction: float | None = None,
) -> Any:  # fmt: skip
    """The variance over axes: the mean of ``|x - mean(x)|**2``, with n - ddof in the place of n."""
    a = operand(a) if dtype is None else operand(a).astype(dtype)
    axes = normal_axes(axis, a.ndim)
    apart = a - (_mean(a, axes, keepdims=True) if mean is None else mean)
    square = real(apart * conj(apart)) if a.dtype.kind == "c" else apart * apart
    n = count_of(raw(a).shape, axes)
    left = np.maximum(n - (ddof if correction is None else correction), 0)
    return _mean(square, axes, keepdims=keepdims) * (float(n / left) if left else np.nan)


_mean = mean  # `mean` is a parameter's name above


@instead_of(np.std)
def std(
    a: Any, axis: Any = None, dtype: Any = None, out: None = None, ddof: float = 0, keepdims: bool = False, *,
    mean: Any = None, correction: float | None = None,
) -> Any:  # fmt: skip
    """The square root of `var`. Where nothing varies it has no derivative, and the cotangent there is zero."""
    return root(var(a, axis, dtype, None, ddof, keepdims, mean=mean, correction=correction))


def root(x: Any) -> Any:
    """The square root of what is not negative, with derivative zero at zero."""
    return sqrt(nonzero(x)) * (x != 0)


@instead_of(np.average)
def average(a: Any, axis: Any = None, weights: Any = None, returned: bool = False, *, keepdims: bool = False) -> Any:
    """The weighted mean; both the values and the weights have derivatives."""
    a = operand(a)
    if weights is None:
        y = mean(a, axis, keepdims=keepdims)
        return (y, y * 0 + count_of(raw(a).shape, normal_axes(axis, a.ndim))) if returned else y
    weights = operand(weights)
    if weights.ndim != a.ndim:
        (at,) = normal_axes(axis, a.ndim)
        weights = reshape(weights, tuple(n if i == at else 1 for i, n in enumerate(raw(a).shape)))
        weights = broadcast_to(weights, raw(a).shape)
    total = sum(weights, axis, keepdims=keepdims)
    y = divide(sum(a * weights, axis, keepdims=keepdims), total)
    return (y, total) if returned else y


# -- without nan -----------------------------------------------------------------------------------------------------
def _filled(a: Any, value: float) -> tuple[Any, Any]:
    missing = isnan(a)
    return where(missing, value, a), missing


def _counted(missing: Any, like: Any, axis: Any, keepdims: bool) -> Any:
    return sum((~missing).astype(like.dtype.type(0).real.dtype), axis, keepdims=keepdims)


@instead_of(np.nansum)
def nansum(a: Any, axis: Any = None, dtype: Any = None, out: None = None, keepdims: bool = False) -> Any:
    """The sum of what is not nan."""
    return sum(_filled(operand(a), 0)[0], axis, dtype, keepdims=keepdims)


@instead_of(np.nanprod)
def nanprod(a: Any, axis: Any = None, dtype: Any = None, out: None = None, keepdims: bool = False) -> Any:
    """The product of what is not nan."""
    return prod(_filled(operand(a), 1)[0], axis, dtype, keepdims=keepdims)


@instead_of(np.nanmax)
def nanmax(a: Any, axis: Any = None, out: None = None, keepdims: bool = False) -> Any:
    """The largest of what is not nan."""
    return max(_filled(operand(a), -math.inf)[0], axis, keepdims=keepdims)


@instead_of(np.nanmin)
def nanmin(a: Any, axis: Any = None, out: None = None, keepdims: bool = False) -> Any:
    """The smallest of what is not nan."""
    return min(_filled(operand(a), math.inf)[0], axis, keepdims=keepdims)


@instead_of(np.nancumsum)
def nancumsum(a: Any, axis: int | None = None, dtype: Any = None, out: None = None) -> Any:
    """The running sum with zero in the place of nan."""
    return cumsum(_filled(operand(a), 0)[0], axis, dtype)


@instead_of(np.nancumprod)
def nancumprod(a: Any, axis: int | None = None, dtype: Any = None, out: None = None) -> Any:
    """The running product with one in the place of nan."""
    return cumprod(_filled(operand(a), 1)[0], axis, dtype)


@instead_of(np.nanmean)
def nanmean(a: Any, axis: Any = None, dtype: Any = None, out: None = None, keepdims: bool = False) -> Any:
    """The mean of what is not nan."""
    filled, missing = _filled(operand(a), 0)
    return sum(filled, axis, dtype, keepdims=keepdims) / _counted(missing, filled, axis, keepdims)


@instead_of(np.nanvar)
def nanvar(
    a: Any, axis: Any = None, dtype: Any = None, out: None = None, ddof: float = 0, keepdims: bool = False
) -> Any:
    """The variance of what is not nan."""
    filled, missing = _filled(operand(a), 0)
    apart = where(missing, 0, filled - nanmean(a, axis, dtype, keepdims=True))
    square = real(apart * conj(apart)) if filled.dtype.kind == "c" else apart * apart
    return sum(square, axis, dtype, keepdims=keepdims) / (_counted(missing, filled, axis, keepdims) - ddof)


@instead_of(np.nanstd)
def nanstd(
    a: Any, axis: Any = None, dtype: Any = None, out: None = None, ddof: float = 0, keepdims: bool = False
) -> Any:
    """The square root of `nanvar`."""
    return root(nanvar(a, axis, dtype, None, ddof, keepdims))
