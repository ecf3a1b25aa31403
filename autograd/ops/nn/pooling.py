"""Pooling: the maximum or the mean of every window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import numpy as np

from ...arrays.shape_only import Shaped
from ...engine.leaves import constant
from ...engine.primitive import op
from ...engine.promotion import composite
from ...engine.tensor import TENSORS, Tensor
from ...errors import ShapeError, typed_errors
from ...layouts.layout import Mix
from ..reductions import sum
from ..shape import expand_dims
from .unfold import Windows, fold, per_dimension, unfold, unfolded, windows

Shape = tuple[int, ...]


def _window_max(x: Any, geometry: Any) -> Any:
    return np.max(unfolded(x, Windows(*geometry), -np.inf), axis=2)


def _first_maximum(x: Any, geometry: Any) -> Any:
    """1 at the first maximum of every window and 0 elsewhere; an array or a Tensor as x, with its layout."""
    array = x.array if x.__class__ in TENSORS else x
    laid = unfolded(array, Windows(*geometry), -np.inf)
    if type(laid) is not Shaped:
        first = np.expand_dims(laid.argmax(axis=2), 2)
        place = np.cumsum(np.ones_like(laid), axis=2) - 1
        laid = (place == first).astype(laid.dtype)
    return Tensor(laid, x.layout) if x.__class__ in TENSORS else laid


def _pooling_dims(shapes: Sequence[Shape], options: Any) -> Any:
    return [(0, 1, *(Mix for _ in shapes[0][2:]))]


max_pool_op = op(
    "max_pool", "N", _window_max,
    lambda ct, y, x, geometry: fold(expand_dims(ct, 2) * _first_maximum(x, geometry), options=(geometry,)),
    saves="0", dims=_pooling_dims, operands="x",
    tangent=(lambda dx, y, x, geometry: sum(unfold(dx, options=(geometry,)) * _first_maximum(x, geometry), 2),),
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
