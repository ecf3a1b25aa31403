"""Losses, as functions and as modules: of each element, their sum, or their mean.

``reduction="mean"`` is torch's default, and divides by what this process sees: a mean over a sharded dimension is
refused. There take the sum, which is Partial, and divide it by the global count, known before backward.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import ops
from ..engine.parameter import constant
from ..engine.state import state
from ..engine.tensor import TENSORS, Tensor
from ..errors import DtypeError, LayoutError, ShapeError, call_site
from .module import Module

__all__ = [
    "BCEWithLogitsLoss", "CrossEntropyLoss", "L1Loss", "MSELoss", "NLLLoss", "SmoothL1Loss",
    "binary_cross_entropy_with_logits", "l1_loss", "mse_loss", "nll_loss", "smooth_l1_loss",
]  # fmt: skip


def _reduced(losses: Any, reduction: str) -> Any:
    if reduction == "mean":
        return ops.mean(losses)
    if reduction == "sum":
        return ops.sum(losses)
    if reduction != "none":
        raise ShapeError(f"reduction={reduction!r} was given; needed: 'none', 'sum' or 'mean'" + call_site())
    return losses


def _difference(name: str, x: Any, target: Any) -> Any:
    """``x - target`` of equal shapes: a loss that broadcasts is mostly a mistake."""
    shapes = [a.array.shape if a.__class__ in TENSORS else np.shape(a) for a in (x, target)]
    if shapes[0] != shapes[1]:
        raise ShapeError(f"{name}: input of shape {shapes[0]}, target of shape {shapes[1]}; needed: one shape"
                         + call_site())  # fmt: skip
    return x - target


def mse_loss(input: Any, target: Any, reduction: str = "mean") -> Any:
    """``(input - target)^2``.

    Examples
    --------
    >>> import numpy
    >>> from autograd import nn
    >>> float(nn.mse_loss(numpy.array([1.0, 3.0]), numpy.array([1.0, 1.0])))
    2.0
    """
    d = _difference("mse_loss", input, target)
    return _reduced(d * d, reduction)


def l1_loss(input: Any, target: Any, reduction: str = "mean") -> Any:
    """``|input - target|``; its derivative at 0 is 0."""
    return _reduced(ops.absolute(_difference("l1_loss", input, target)), reduction)


def smooth_l1_loss(input: Any, target: Any, reduction: str = "mean", beta: float = 1.0) -> Any:
    """``d^2 / 2 beta`` where ``|d| < beta``, else ``|d| - beta / 2``, of ``d = input - target``.

    Source: Girshick 2015 (Fast R-CNN), equation 3.
    """
    if beta < 0:
        raise ShapeError(f"smooth_l1_loss: beta={beta} was given; needed: at least 0")
    d = _difference("smooth_l1_loss", input, target)
    size = ops.absolute(d)
    if beta == 0:
        return _reduced(size, reduction)
    return _reduced(ops.where(ops.less(size, beta), d * d * (0.5 / beta), size - 0.5 * beta), reduction)


def binary_cross_entropy_with_logits(
    input: Any, target: Any, weight: Any = None, reduction: str = "mean", pos_weight: Any = None
) -> Any:
    """``-(pos_weight t log s(x) + (1 - t) log(1 - s(x)))`` times `weight`, s the logistic function; without overflow.

    Parameters
    ----------
    input : logits
    target : of the same shape, in 0..1
    weight, pos_weight : arrays that broadcast to it, optional; the same on every rank

    Examples
    --------
    >>> import numpy
    >>> from autograd import nn
    >>> float(nn.binary_cross_entropy_with_logits(numpy.zeros(3), numpy.array([0.0, 1.0, 0.5])).round(6))
    0.693147
    """
    shapes = [a.array.shape if a.__class__ in TENSORS else np.shape(a) for a in (input, target)]
    if shapes[0] != shapes[1]:
        raise ShapeError(
            f"binary_cross_entropy_with_logits: input of shape {shapes[0]}, target of shape {shapes[1]}; needed: one "
            "shape" + call_site()
        )
    if pos_weight is None:
        losses = ops.softplus(input) - input * target
    else:
        more = (_same(pos_weight) - 1.0) * target + 1.0
        losses = input * (1.0 - target) + more * ops.softplus(-input)
    return _reduced(losses if weight is None else losses * _same(weight), reduction)


def _same(weight: Any) -> Any:
    """A user's weights: the same everywhere, if they are an array."""
    return weight if weight.__class__ in TENSORS or state.grid is None else constant(weight)


def nll_loss(
    input: Any, target: Any, weight: Any = None, ignore_index: int = -100, reduction: str = "mean"
) -> Any:
    """``-weight[t] input[row, t]`` of log-probabilities, [n, classes]; a mean is divided by the sum of the weights.

    Parameters
    ----------
    input : [n, classes]
    target : [n], integers
    weight : [classes], optional; the same on every rank
    ignore_index : int
        Rows with this label have no loss and do not count.

    Raises
    ------
    ShapeError, DtypeError, LayoutError
        A mean over sharded rows: each rank would divide by its own count.

    Examples
    --------
    >>> import numpy
    >>> from autograd import nn
    >>> float(nn.nll_loss(numpy.log(numpy.full((2, 4), 0.25)), numpy.array([0, -100])).round(6))
    1.386294
    """
    shares = _shares("nll_loss", input, target, weight, ignore_index, 0.0)
    losses = ops.sum(input * shares[0], -1) * -1.0
    return _mean_of_rows("nll_loss", losses, shares[1], reduction)


def _shares(name: str, x: Any, target: Any, weight: Any, ignored: int, smoothing: float) -> tuple[Any, Any]:
    """What each class' log-probability counts in each row, [n, classes], and what each row counts in a mean, [n]."""
    raw = target.array if target.__class__ in TENSORS else np.asarray(target)
    array = x.array if x.__class__ in TENSORS else x
    if raw.dtype.kind not in "iu":
        raise DtypeError(f"{name}: labels of dtype {raw.dtype} were given; needed: integers" + call_site())
    if len(array.shape) != 2 or raw.shape != array.shape[:1]:
        raise ShapeError(
            f"{name}: input of shape {array.shape}, labels of shape {raw.shape}; needed: [n, classes] and [n]"
            + call_site()
        )
    classes = array.shape[1]
    seen = raw != ignored
    if (seen & ((raw < 0) | (raw >= classes))).any():
        raise ShapeError(f"{name}: labels must lie in 0..{classes - 1}, or be {ignored} (ignored)" + call_site())
    w = np.ones(classes, array.dtype) if weight is None else np.asarray(getattr(weight, "array", weight), array.dtype)
    if w.shape != (classes,):
        raise ShapeError(f"{name}: weight of shape {w.shape}; needed: ({classes},), one a class" + call_site())
    hot = (raw[:, None] == np.arange(classes)).astype(array.dtype)
    spread = (hot * (1 - smoothing) + smoothing / classes) * w * seen[:, None]
    rows = (hot * w).sum(axis=1) * seen
    if target.__class__ in TENSORS:
        return Tensor(spread, target.layout), Tensor(rows, target.layout)
    return spread, rows


def _mean_of_rows(name: str, losses: Any, counts: Any, reduction: str) -> Any:
    if reduction != "mean":
        return _reduced(losses, reduction)
    if losses.__class__ in TENSORS and losses.layout is not None and losses.layout.special:
        raise LayoutError(
            f"{name}(reduction='mean') of rows that are sharded, {losses.layout!r}: each rank would divide by its own "
            "count. Fix: reduction='sum', divided by the global count" + call_site()
        )
    return ops.sum(losses) / ops.sum(counts)


class CrossEntropyLoss(Module):
    """`ops.cross_entropy` with torch's defaults: the mean, labels of -100 ignored, and class weights.

    Parameters
    ----------
    weight : [classes], optional
    ignore_index : int
    reduction : "mean", "sum" or "none"
    label_smoothing : float

    Examples
    --------
    >>> import numpy
    >>> from autograd import nn
    >>> float(nn.CrossEntropyLoss()(numpy.zeros((2, 4)), numpy.array([0, 3])).round(6))
    1.386294
    """

    def __init__(
        self, weight: Any = None, ignore_index: int = -100, reduction: str = "mean", label_smoothing: float = 0.0
    ):
        self.weight = None if weight is None else np.asarray(weight)
        self.ignore_index, self.reduction, self.label_smoothing = ignore_index, reduction, label_smoothing

    def forward(self, input: Any, target: Any) -> Any:
        if self.weight is None:
            return ops.cross_entropy(
                input, target, self.reduction, ignore_index=self.ignore_index, label_smoothing=self.label_smoothing
            )
        log_p = ops.log_softmax(input, 1)
        spread, rows = _shares(
            "CrossEntropyLoss", input, target, self.weight, self.ignore_index, self.label_smoothing
        )
        return _mean_of_rows("CrossEntropyLoss", ops.sum(log_p * spread, -1) * -1.0, rows, self.reduction)


class NLLLoss(Module):
    """`nll_loss` as a module."""

    def __init__(self, weight: Any = None, ignore_index: int = -100, reduction: str = "mean"):
        self.weight = None if weight is None else np.asarray(weight)
        self.ignore_index, self.reduction = ignore_index, reduction

    def forward(self, input: Any, target: Any) -> Any:
        return nll_loss(input, target, self.weight, self.ignore_index, self.reduction)


class _Pointwise(Module):
    def __init__(self, reduction: str = "mean"):
        self.reduction = reduction


class MSELoss(_Pointwise):
    """`mse_loss` as a module."""

    def forward(self, input: Any, target: Any) -> Any:
        return mse_loss(input, target, self.reduction)


class L1Loss(_Pointwise):
    """`l1_loss` as a module."""

    def forward(self, input: Any, target: Any) -> Any:
        return l1_loss(input, target, self.reduction)


class SmoothL1Loss(Module):
    """`smooth_l1_loss` as a module."""

    def __init__(self, reduction: str = "mean", beta: float = 1.0):
        self.reduction, self.beta = reduction, beta

    def forward(self, input: Any, target: Any) -> Any:
        return smooth_l1_loss(input, target, self.reduction, self.beta)


class BCEWithLogitsLoss(Module):
    """`binary_cross_entropy_with_logits` as a module."""

    def __init__(self, weight: Any = None, reduction: str = "mean", pos_weight: Any = None):
        self.weight = None if weight is None else np.asarray(weight)
        self.pos_weight = None if pos_weight is None else np.asarray(pos_weight)
        self.reduction = reduction

    def forward(self, input: Any, target: Any) -> Any:
        return binary_cross_entropy_with_logits(input, target, self.weight, self.reduction, self.pos_weight)
