"""Pooling: the largest or the mean of every window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...arrays.shape_only import Shaped
from ...engine.parameter import constant
from ...engine.primitive import op
from ...engine.tensor import TENSORS, Tensor
from ...errors import ShapeError, call_site
from ...layouts.layout import Mix
from ..reductions import sum
from ..shape import expand_dims
from .unfold import Windows, each, fold, unfold, unfolded, windows

Shape = tuple[int, ...]


def _largest(x: Any, geometry: Any) -> Any:
    return np.max(unfolded(x, Windows(*geometry), -np.inf), axis=2)


def _winner(x: Any, geometry: Any) -> Any:
    """Ones at the first of the largest in every window, zeros elsewhere; of x's own kind and layout."""
    array = x.array if x.__class__ in TENSORS else x
    laid = unfolded(array, Windows(*geometry), -np.inf)
    if type(laid) is not Shaped:
        first = np.expand_dims(laid.argmax(axis=2), 2)
        place = np.cumsum(np.ones_like(laid), axis=2) - 1
        laid = (place == first).astype(laid.dtype)
    return Tensor(laid, x.layout) if x.__class__ in TENSORS else laid


def _dims(shapes: Sequence[Shape], options: Any) -> Any:
    return [(0, 1, *(Mix for _ in shapes[0][2:]))]


max_pool_op = op(
    "max_pool", "N", _largest,
    lambda ct, y, x, geometry: fold(expand_dims(ct, 2) * _winner(x, geometry), options=(geometry,)),
    saves="0", dims=_dims, operands="x",
    tangent=(lambda dx, y, x, geometry: sum(unfold(dx, options=(geometry,)) * _winner(x, geometry), 2),),
)  # fmt: skip


def max_pool(x: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1) -> Any:
    """The largest element of every window of x, [n, channels, *places]; padding never wins.

    Parameters
    ----------
    kernel_size, padding, dilation : int or one per spatial dimension
    stride : the same; kernel_size by default

    Returns
    -------
    [n, channels, *windows]. Examples and channels may be sharded.

    Raises
    ------
    ShapeError
        Also where padding is more than half a window, which could then hold nothing else.

    Notes
    -----
    Adjoint: the cotangent at the first of the largest (as in torch).

    Examples
    --------
    >>> import numpy
    >>> from autograd import ops
    >>> ops.max_pool(numpy.array([[[1.0, 3.0, 2.0, 0.0]]]), 2)
    array([[[3., 2.]]])
    """
    w = _windows("max_pool", x, kernel_size, stride, padding, dilation)
    return max_pool_op(x, options=(tuple(w),))


def _windows(caller: str, x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any = 1) -> Windows:
    shape = x.array.shape if x.__class__ in TENSORS else np.shape(x)
    if len(shape) < 3:
        raise ShapeError(f"{caller}: x of shape {shape}; needed: [n, channels, *places]" + call_site())
    kernel = each(kernel, len(shape) - 2, f"{caller}: kernel_size", 1)
    w = windows(caller, shape[2:], kernel, kernel if stride is None else stride, padding, dilation)
    if any(2 * low > k for (low, _), k in zip(w.padding, kernel, strict=True)):
        raise ShapeError(f"{caller}: padding={padding} is more than half of kernel_size={kernel}" + call_site())
    return w


def avg_pool(
    x: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, count_include_pad: bool = True
) -> Any:
    """The mean of every window of x, [n, channels, *places].

    Parameters
    ----------
    kernel_size, padding : int or one per spatial dimension
    stride : the same; kernel_size by default
    count_include_pad : bool
        Whether the zeros of the padding count.

    Examples
    --------
    >>> import numpy
    >>> from autograd import ops
    >>> ops.avg_pool(numpy.array([[[1.0, 3.0, 2.0, 0.0]]]), 2)
    array([[[2., 1.]]])
    """
    w = _windows("avg_pool", x, kernel_size, stride, padding)
    total = sum(unfold(x, options=(tuple(w),)), 2)
    if count_include_pad or not any(map(any, w.padding)):
        return total * (1.0 / np.prod(w.kernel).item())
    like = total.array if total.__class__ in TENSORS else total
    share = 1.0 / unfolded(np.ones_like(like, shape=(1, 1, *w.places)), w).sum(axis=2)[0, 0]
    if total.__class__ not in TENSORS or total.layout is None:
        return total * share
    return total * constant(share)


__all__ = ["avg_pool", "max_pool"]
