"""Softmax, log-softmax and log-sum-exp along an axis."""

from __future__ import annotations

from typing import Any, overload

import numpy as np

from ...arrays.half import in_float32
from ...engine.primitive import op
from ...engine.tensor import Tensor
from ...errors import ArgumentError, typed_errors
from ...layouts.layout import Mix
from ..arguments import LAST, normal_axes, one_of, raw
from ..elementwise import exp
from ..shape import expand_dims, mixed_axis_dims
from .fused import Fused


@in_float32
def _logsumexp(x: Any, axis: int) -> Any:
    top = np.max(x, axis=axis, keepdims=True)
    top = np.where(np.isfinite(top), top, 0)
    return np.log(np.sum(np.exp(x - top), axis=axis)) + np.squeeze(top, axis)


_logsumexp_op = op(
    "logsumexp", "N", _logsumexp,
    lambda ct, y, x, axis: expand_dims(ct, axis) * exp(x - expand_dims(y, axis)),
    saves="y0", operands="x", sensitive=True,
    dims=lambda shapes, options: [
        tuple(Mix if i == options[0] else i - (i > options[0]) for i in range(len(shapes[0])))],
)  # fmt: skip


def _softmax(x: Any, axis: int) -> Any:
    e = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return e / np.sum(e, axis=axis, keepdims=True)


def _softmax_adjoint(ct: Any, y: Any, x: Any, axis: int) -> Any:
    y = softmax(x, axis)
    weighted = ct * y
    return weighted - y * weighted.sum(axis=axis, keepdims=True)


_softmax_op = Fused(
    "softmax", "N", _softmax, (_softmax_adjoint,), saves="0", dims=mixed_axis_dims, operands="x", kernel="softmax",
    tangent=(_softmax_adjoint,),  # the Jacobian diag(y) - y y' is symmetric
    sensitive=True,
)  # fmt: skip


_log_softmax_op = Fused(
    "log_softmax", "N", lambda x, axis: x - np.expand_dims(_logsumexp(x, axis), axis),
    (lambda ct, y, x, axis: ct - _softmax_op(x, options=(axis,)) * ct.sum(axis=axis, keepdims=True),),
    saves="0", dims=mixed_axis_dims, operands="x", kernel="softmax",
    tangent=(lambda dx, y, x, axis: dx - (_softmax_op(x, options=(axis,)) * dx).sum(axis=axis, keepdims=True),),
    sensitive=True,
)  # fmt: skip


def _axis(x: Any, dim: Any, axis: Any) -> int:
    if axis is not None:
        dim = one_of("softmax and logsumexp", dim, LAST, axis)
    axis = -1 if dim is LAST else dim
    if axis is None or isinstance(axis, list | tuple):
        raise ArgumentError(f"softmax and logsumexp: axis={axis!r} was given; needed: one integer")
    return normal_axes(axis, len(raw(x).shape))[0]


@overload
def logsumexp(input: Tensor, dim: int = LAST, *, axis: Any = None) -> Tensor: ...
@overload
def logsumexp(input: Any, dim: int = LAST, *, axis: Any = None) -> Any: ...
@typed_errors
def logsumexp(input: Any, dim: int = LAST, *, axis: Any = None) -> Any:
    """Return ``log(sum(exp(x)))`` along an axis, computed without overflow. That dimension may not be sharded."""
    return _logsumexp_op(input, options=(_axis(input, dim, axis),))


@overload
def softmax(input: Tensor, dim: int = LAST, *, axis: Any = None) -> Tensor: ...
@overload
def softmax(input: Any, dim: int = LAST, *, axis: Any = None) -> Any: ...
@typed_errors
def softmax(input: Any, dim: int = LAST, *, axis: Any = None) -> Any:
    """Return ``exp(x) / sum(exp(x))`` along an axis, computed without overflow. That dimension may not be sharded.

    Adjoint: ``ct * y - y * sum(ct * y)``.

    Parameters
    ----------
    input : Tensor or array
        R, I, V, or Shard of another dimension than `dim`; a Partial value is refused.
    dim : int
        The dimension along which the results add up to 1, by default the last one.
    axis : int
        Another name of `dim`.

    Returns
    -------
    Tensor or array
        The shape, dtype and layout of `input`.

    Raises
    ------
    LayoutError
        `input` is Partial, or sharded along `dim`.
    AxisError
        `input` has no dimension `dim`.

    Examples
    --------
    >>> import numpy
    >>> from autograd import nn
    >>> nn.softmax(numpy.zeros((1, 4))).tolist()
    [[0.25, 0.25, 0.25, 0.25]]
    """
    return _softmax_op(input, options=(_axis(input, dim, axis),))


@overload
def log_softmax(input: Tensor, dim: int = LAST, *, axis: Any = None) -> Tensor: ...
@overload
def log_softmax(input: Any, dim: int = LAST, *, axis: Any = None) -> Any: ...
@typed_errors
def log_softmax(input: Any, dim: int = LAST, *, axis: Any = None) -> Any:
    """Return ``log(softmax(x))`` along an axis, computed without overflow. That dimension may not be sharded.

    Adjoint: ``ct - softmax(x) * sum(ct)``.

    Parameters
    ----------
    input, dim, axis
        As in `softmax`.

    Returns
    -------
    Tensor or array
        The shape, dtype and layout of `input`.

    Raises
    ------
    LayoutError, AxisError
        As in `softmax`.

    Examples
    --------
    >>> import numpy
    >>> from autograd import nn
    >>> nn.log_softmax(numpy.zeros((1, 4))).round(4).tolist()
    [[-1.3863, -1.3863, -1.3863, -1.3863]]
    """
    return _log_softmax_op(input, options=(_axis(input, dim, axis),))


__all__ = ["log_softmax", "logsumexp", "softmax"]
