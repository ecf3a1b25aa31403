"""Softmax, its logarithm, log-sum-exp."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...engine.primitive import op
from ...errors import ShapeError
from ...layouts.layout import Mix
from ..elementwise import exp
from ..shape import expand_dims
from .fused import Fused

Shape = tuple[int, ...]


def _rows_dims(shapes: Sequence[Shape], options: Any) -> Any:
    axis = options[0]
    return [tuple(Mix if i == axis else i for i in range(len(shapes[0])))]


def _reduced_dims(shapes: Sequence[Shape], options: Any) -> Any:
    axis = options[0]
    return [tuple(Mix if i == axis else i - (i > axis) for i in range(len(shapes[0])))]


def _logsumexp(x: Any, axis: int) -> Any:
    top = np.max(x, axis=axis, keepdims=True)
    top = np.where(np.isfinite(top), top, 0)
    return np.log(np.sum(np.exp(x - top), axis=axis)) + np.squeeze(top, axis)


_logsumexp_op = op(
    "logsumexp", "N", _logsumexp,
    lambda ct, y, x, axis: expand_dims(ct, axis) * exp(x - expand_dims(y, axis)),
    saves="y0", dims=_reduced_dims, operands="x",
)  # fmt: skip


def _softmax(x: Any, axis: int) -> Any:
    e = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return e / np.sum(e, axis=axis, keepdims=True)


def _softmax_rule(ct: Any, y: Any, x: Any, axis: int) -> Any:
    y = softmax(x, axis)
    weighted = ct * y
    return weighted - y * weighted.sum(axis=axis, keepdims=True)


_softmax_op = Fused(
    "softmax", "N", _softmax, (_softmax_rule,), saves="0", dims=_rows_dims, operands="x",
    tangent=(_softmax_rule,),  # the Jacobian diag(y) - y y' is symmetric
)  # fmt: skip


def _log_softmax(x: Any, axis: int) -> Any:
    return x - np.expand_dims(_logsumexp(x, axis), axis)


_log_softmax_op = Fused(
    "log_softmax", "N", _log_softmax,
    (lambda ct, y, x, axis: ct - softmax(x, axis) * ct.sum(axis=axis, keepdims=True),),
    saves="0", dims=_rows_dims, operands="x",
    tangent=(lambda dx, y, x, axis: dx - (softmax(x, axis) * dx).sum(axis=axis, keepdims=True),),
)  # fmt: skip


def _axis(x: Any, axis: int) -> int:
    ndim = len((x.array if hasattr(x, "tape") else x).shape)
    if not -ndim <= axis < ndim:
        raise ShapeError(f"axis {axis} was given for an array of {ndim} dimensions")
    return axis % ndim


def logsumexp(x: Any, axis: int = -1) -> Any:
    """log(sum(exp(x))) along an axis, without overflow; refused where that dimension is sharded."""
    return _logsumexp_op(x, options=(_axis(x, axis),))


def softmax(x: Any, axis: int = -1) -> Any:
    """exp(x) / sum(exp(x)) along an axis, without overflow; refused where that dimension is sharded."""
    return _softmax_op(x, options=(_axis(x, axis),))


def log_softmax(x: Any, axis: int = -1) -> Any:
    """log(softmax(x)) along an axis, without overflow; refused where that dimension is sharded."""
    return _log_softmax_op(x, options=(_axis(x, axis),))


__all__ = ["log_softmax", "logsumexp", "softmax"]
