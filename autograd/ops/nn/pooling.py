"""Pooling: the maximum or the mean of every window."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np

from ...arrays.shape_only import Shaped
from ...engine.leaves import constant
from ...engine.primitive import Primitive, op
from ...engine.promotion import composite
from ...engine.tensor import TENSORS, Tensor
from ...errors import ShapeError, typed_errors
from ...layouts.layout import Mix
from ..reductions import sum
from .unfold import Windows, arranged, padded, per_dimension, shape_only, unfold, unfolded, unpadded_key, windows

Shape = tuple[int, ...]


def _window_max(x: Any, geometry: Any) -> Any:
    if type(x) is Shaped:
        return Shaped((*x.shape[:2], *Windows(*geometry).number), x.dtype, x.why)
    w, (x,), back = arranged(Windows(*geometry), x)
    return back(_maxima(padded(x, w, -np.inf), w))


def _maxima(x: Any, w: Windows) -> Any:
    """The maximum of each window of a padded array."""
    first, *others = w.slices()
    y = x[first].copy()
    for at in others:
        np.maximum(y, x[at], out=y)
    return y


def _first_maxima(x: Any, w: Windows) -> Iterator[tuple[Any, Any]]:
    """For each element of a window: its key in the padded array `x`, and for which windows it is the first maximum."""
    y = _maxima(x, w)
    has_nan = x.__class__ is not np.ndarray or np.isnan(y).any()  # a device is not asked
    left = None  # the windows whose maximum has not been met
    for at in w.slices():
        part = x[at]
        hit = (part == y) | np.isnan(part) if has_nan else part == y
        if left is None:
            left = ~hit
        else:
            hit &= left
            left ^= hit
        yield at, hit


def _to_maxima(ct: Any, x: Any, geometry: Any) -> Any:
    """The cotangents at the first maxima of the windows of x, and 0 elsewhere."""
    dry = shape_only(x.shape, ct.dtype, ct, x)
    if dry is not None:
        return dry
    w, (x, ct), back = arranged(Windows(*geometry), x, ct)
    x = padded(x, w, -np.inf)
    found = np.empty_like(x, ct.dtype) if w.tiles else np.zeros_like(x, ct.dtype)
    for at, hit in _first_maxima(x, w):
        if w.tiles:
            np.multiply(ct, hit, out=found[at])
        else:
            found[at] += ct * hit
    return back(found[unpadded_key(w)])


def _of_maxima(dx: Any, x: Any, geometry: Any) -> Any:
    """The elements of dx at the first maxima of the windows of x."""
    dry = shape_only((*x.shape[:2], *Windows(*geometry).number), dx.dtype, dx, x)
    if dry is not None:
        return dry
    w, (x, dx), back = arranged(Windows(*geometry), x, dx)
    found, dx = np.zeros_like(dx, shape=(*dx.shape[:2], *w.number)), padded(dx, w)
    for at, hit in _first_maxima(padded(x, w, -np.inf), w):
        found += dx[at] * hit
    return back(found)


def _pooling_dims(shapes: Sequence[Shape], options: Any) -> Any:
    return [(0, 1, *(Mix for _ in shapes[0][2:]))] * len(shapes)


max_pool_op = op(
    "max_pool", "N", _window_max, lambda ct, y, x, geometry: to_maxima(ct, x, options=(geometry,)),
    saves="0", dims=_pooling_dims, operands="x",
    tangent=(lambda dx, y, x, geometry: of_maxima(dx, x, options=(geometry,)),),
)  # fmt: skip
to_maxima: Primitive = op(
    "max_pool_cotangent", "a S", _to_maxima,
    (lambda g, y, ct, x, geometry: of_maxima(g, x, options=(geometry,)), None),
    saves="1", dims=_pooling_dims, operands="ct x",
)  # fmt: skip
of_maxima: Primitive = op(
    "max_pool_tangent", "a S", _of_maxima,
    (lambda ct, y, dx, x, geometry: to_maxima(ct, x, options=(geometry,)), None),
    saves="1", dims=_pooling_dims, operands="dx x",
)  # fmt: skip


@overload
def max_pool(x: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1) -> Tensor: ...
@overload
def max_pool(x: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1) -> Any: ...
@typed_errors
def max_pool(x: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1) -> Any:
    """Return the maximum of every window of x, ``[n, channels, *spatial]``.

    Parameters
    ----------
    kernel_size, padding, dilation : int or one per spatial dimension
        The padding counts as minus infinity.
    stride : int or one per spatial dimension, optional
        `kernel_size` by default.

    Returns
    -------
    ``[n, channels, *windows]``
        The first two dimensions may be sharded.

    Raises
    ------
    ShapeError
        x has fewer than three dimensions, or `padding` is more than half of `kernel_size`, so that a window could
        hold nothing but padding.

    Notes
    -----
    Adjoint: the cotangent at the first maximum of each window, as in PyTorch.

    Examples
    --------
    >>> import numpy
    >>> from autograd import ops
    >>> ops.max_pool(numpy.array([[[1.0, 3.0, 2.0, 0.0]]]), 2)
    array([[[3., 2.]]])
    """
    w = _pooling_windows("max_pool", x, kernel_size, stride, padding, dilation)
    return max_pool_op(x, options=(tuple(w),))


def _pooling_windows(caller: str, x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any = 1) -> Windows:
    shape = x.array.shape if x.__class__ in TENSORS else np.shape(x)
    if len(shape) < 3:
        raise ShapeError(f"{caller}: x of shape {shape}; needed: [n, channels, *spatial]")
    kernel = per_dimension(kernel, len(shape) - 2, f"{caller}: kernel_size", 1)
    w = windows(caller, shape[2:], kernel, kernel if stride is None else stride, padding, dilation)
    if any(2 * low > k for (low, _), k in zip(w.padding, kernel, strict=True)):
        raise ShapeError(f"{caller}: padding={padding} is more than half of kernel_size={kernel}")
    return w


@overload
def avg_pool(
    x: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, count_include_pad: bool = True
) -> Tensor: ...
@overload
def avg_pool(
    x: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, count_include_pad: bool = True
) -> Any: ...
@typed_errors
@composite
def avg_pool(
    x: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, count_include_pad: bool = True
) -> Any:
    """Return the mean of every window of x, ``[n, channels, *spatial]``.

    Parameters
    ----------
    kernel_size, padding : int or one per spatial dimension
    stride : int or one per spatial dimension, optional
        `kernel_size` by default.
    count_include_pad : bool
        Whether the zeros of the padding count as elements of the mean.

    Raises
    ------
    ShapeError
        As for `max_pool`.

    Examples
    --------
    >>> import numpy
    >>> from autograd import ops
    >>> ops.avg_pool(numpy.array([[[1.0, 3.0, 2.0, 0.0]]]), 2)
    array([[[2., 1.]]])
    """
    w = _pooling_windows("avg_pool", x, kernel_size, stride, padding)
    total = sum(unfold(x, options=(tuple(w),)), 2)
    if count_include_pad or not any(map(any, w.padding)):
        return total * (1.0 / np.prod(w.kernel).item())
    like = total.array if total.__class__ in TENSORS else total
    share = 1.0 / unfolded(np.ones_like(like, shape=(1, 1, *w.extents)), w).sum(axis=2)[0, 0]
    if total.__class__ not in TENSORS or total.layout is None:
        return total * share
    return total * constant(share)


__all__ = ["avg_pool", "max_pool"]
