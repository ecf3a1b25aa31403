"""Loss functions, as functions and as modules.

``reduction`` is "none" (a loss per element or row), "sum" or "mean", which is the default, as in torch. A mean over a
sharded dimension is refused, because each rank would divide by its own count: use the sum, which is Partial, and divide
it by the global count.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import ops
from ..engine import events
from ..engine.parameter import constant
from ..engine.state import state
from ..engine.tensor import TENSORS, Tensor
from ..errors import DtypeError, LayoutError, ShapeError, call_site, typed_errors
from ..layouts.layout import R, Shard
from ..ops.nn.cross_entropy import as_rows, mean_of_targets
from ..ops.reductions import mean_loss
from ..random.keys import integer
from .arguments import number
from .module import Module

__all__ = [
    "BCEWithLogitsLoss", "CrossEntropyLoss", "L1Loss", "MSELoss", "NLLLoss", "SmoothL1Loss",
    "binary_cross_entropy_with_logits", "l1_loss", "mse_loss", "nll_loss", "smooth_l1_loss",
]  # fmt: skip


def _reduce(losses: Any, reduction: str, caller: str, input: Any, target: Any) -> Any:
    if reduction == "mean":
        return mean_loss(losses, caller, input=input, target=target)
    if reduction == "sum":
        return ops.sum(losses)
    if reduction != "none":
        raise ShapeError(f"reduction={reduction!r} was given; needed: 'none', 'sum' or 'mean'" + call_site())
    return losses


def _check_shapes(name: str, x: Any, target: Any) -> None:
    # broadcasting between input and target is nearly always a mistake
    shapes = [a.array.shape if a.__class__ in TENSORS else np.shape(a) for a in (x, target)]
    if shapes[0] != shapes[1]:
        raise ShapeError(
            f"{name}: input of shape {shapes[0]}, target of shape {shapes[1]}; needed: one shape" + call_site()
        )


@typed_errors
def mse_loss(input: Any, target: Any, reduction: str = "mean") -> Any:
    """Squared error, ``(input - target)^2``.

    Parameters
    ----------
    input, target : Tensor or array, of one shape
    reduction : {"mean", "sum", "none"}

    Returns
    -------
    Tensor or array
        One number, or with "none" the shape of `input`.

    Raises
    ------
    ShapeError
        The shapes differ.

    Examples
    --------
    >>> import numpy
    >>> from autograd import nn
    >>> float(nn.mse_loss(numpy.array([1.0, 3.0]), numpy.array([1.0, 1.0])))
    2.0
    """
    _check_shapes("mse_loss", input, target)
    d = input - target
    return _reduce(d * d, reduction, "mse_loss", input, target)


@typed_errors
def l1_loss(input: Any, target: Any, reduction: str = "mean") -> Any:
    """Absolute error, ``|input - target|``; its derivative at 0 is 0. The parameters are `mse_loss`'s."""
    _check_shapes("l1_loss", input, target)
    return _reduce(ops.absolute(input - target), reduction, "l1_loss", input, target)


@typed_errors
def smooth_l1_loss(input: Any, target: Any, reduction: str = "mean", beta: float = 1.0) -> Any:
    """Squared error near zero, absolute error beyond: ``d^2 / (2 beta)`` where ``|d| < beta``, else ``|d| - beta / 2``.

    ``d = input - target``. Source: Girshick 2015 (Fast R-CNN), equation 3.

    Parameters
    ----------
    input, target : Tensor or array, of one shape
    reduction : {"mean", "sum", "none"}
    beta : float
        Where the two pieces meet, at least 0. With 0 the loss is `l1_loss`.
    """
    beta = number(beta, "smooth_l1_loss: beta", 0)
    _check_shapes("smooth_l1_loss", input, target)
    d = input - target
    size = ops.absolute(d)
    if beta == 0:
        return _reduce(size, reduction, "smooth_l1_loss", input, target)
    losses = ops.where(ops.less(size, beta), d * d * (0.5 / beta), size - 0.5 * beta)
    return _reduce(losses, reduction, "smooth_l1_loss", input, target)


@typed_errors
def binary_cross_entropy_with_logits(
    input: Any, target: Any, weight: Any = None, reduction: str = "mean", pos_weight: Any = None
) -> Any:
    """Binary cross-entropy of logits, computed without overflow.

    ``-weight (pos_weight t log s(x) + (1 - t) log(1 - s(x)))`` for logits x and targets t; s is the logistic function.

    Parameters
    ----------
    input : Tensor or array
        Logits.
    target : Tensor or array, of the shape of `input`
        Probabilities in 0..1.
    weight, pos_weight : array, optional
        Broadcast to the shape of `input`; the same on every rank.
    reduction : {"mean", "sum", "none"}

    Raises
    ------
    ShapeError
        The shapes differ.

    Examples
    --------
    >>> import numpy
    >>> from autograd import nn
    >>> float(nn.binary_cross_entropy_with_logits(numpy.zeros(3), numpy.array([0.0, 1.0, 0.5])).round(6))
    0.693147
    """
    _check_shapes("binary_cross_entropy_with_logits", input, target)
    if pos_weight is None:
        losses = ops.softplus(input) - input * target
    else:
        scale = (_as_constant(pos_weight) - 1.0) * target + 1.0
        losses = input * (1.0 - target) + scale * ops.softplus(-input)
    losses = losses if weight is None else losses * _as_constant(weight)
    return _reduce(losses, reduction, "binary_cross_entropy_with_logits", input, target)


def _as_constant(weight: Any) -> Any:
    """Label an array of weights as equal on all ranks; a Tensor keeps its layout."""
    return weight if weight.__class__ in TENSORS or state.grid is None else constant(weight)


@typed_errors
def nll_loss(input: Any, target: Any, weight: Any = None, ignore_index: int = -100, reduction: str = "mean") -> Any:
    """Negative log-likelihood, ``-weight[t] input[row, t]`` for the label t of each row.

    A mean is divided by the sum of the weights of the rows.

    Parameters
    ----------
    input : Tensor or array, [n, classes]
        Log-probabilities.
    target : array of int, [n]
        Labels.
    weight : array, [classes], optional
        Weight of each class; the same on every rank.
    ignore_index : int
        Rows with this label have no loss and are not counted in a mean.
    reduction : {"mean", "sum", "none"}

    Raises
    ------
    ShapeError
        The shapes do not fit, or a label is out of range.
    DtypeError
        The labels are not integers.
    LayoutError
        A mean over sharded rows: each rank would divide by its own count.

    Examples
    --------
    >>> import numpy
    >>> from autograd import nn
    >>> float(nn.nll_loss(numpy.log(numpy.full((2, 4), 0.25)), numpy.array([0, -100])).round(6))
    1.386294
    """
    return _weighted_nll("nll_loss", input, target, weight, ignore_index, 0.0, reduction)


def _weighted_nll(
    name: str, log_p: Any, target: Any, weight: Any, ignored: int, smoothing: float, reduction: str
) -> Any:
    """Negative log-likelihood with class weights, ignored labels and label smoothing."""
    of_classes, of_rows = _weights(name, log_p, target, weight, ignored, smoothing)
    losses = ops.sum(log_p * of_classes, -1) * -1.0
    if reduction != "mean":
        return _reduce(losses, reduction, name, log_p, target)
    if losses.__class__ in TENSORS and losses.layout is not None and losses.layout.special:
        raise LayoutError(mean_of_targets(losses, name, target, ignored, weight is not None))
    return ops.sum(losses) / ops.sum(of_rows)


def _weights(name: str, x: Any, target: Any, weight: Any, ignored: int, smoothing: float) -> tuple[Any, Any]:
    """Return the weight of each log-probability, [n, classes], and that of each row in a mean, [n]."""
    raw = target.array if target.__class__ in TENSORS else np.asarray(target)
    array = x.array if x.__class__ in TENSORS else x
    if raw.dtype.kind not in "iu":
        raise DtypeError(f"{name}: labels of dtype {raw.dtype} were given; needed: integers" + call_site())
    if len(array.shape) != 2 or raw.shape != array.shape[:1]:
        raise ShapeError(
            f"{name}: input of shape {array.shape}, labels of shape {raw.shape}; needed: [n, classes] and [n]"
            f"{as_rows(array.shape, raw.shape)}" + call_site()
        )
    classes = array.shape[1]
    seen = raw != ignored
    if (seen & ((raw < 0) | (raw >= classes))).any():
        raise ShapeError(f"{name}: labels must lie in 0..{classes - 1}, or be {ignored} (ignored)" + call_site())
    w = np.ones(classes, array.dtype) if weight is None else np.asarray(getattr(weight, "array", weight), array.dtype)
    if w.shape != (classes,):
        raise ShapeError(f"{name}: weight of shape {w.shape}; needed: ({classes},), one per class" + call_site())
    layout = x.layout if x.__class__ in TENSORS else None
    if weight is not None and layout is not None and events.constants and not state.in_rules:
        parts_of_one = [R if type(label) is Shard else label for label in layout.labels]
        events.compare(f"{name} with class weights", layout.grid.layout(parts_of_one), w)
    one_hot = (raw[:, None] == np.arange(classes)).astype(array.dtype)
    of_classes = (one_hot * (1 - smoothing) + smoothing / classes) * w * seen[:, None]
    of_rows = (one_hot * w).sum(axis=1) * seen
    if target.__class__ in TENSORS:
        return Tensor(of_classes, target.layout), Tensor(of_rows, target.layout)
    return of_classes, of_rows


class CrossEntropyLoss(Module):
    """Cross-entropy of logits [n, classes] and labels [n], with torch's defaults; see `ops.cross_entropy`.

    Parameters
    ----------
    weight : array, [classes], optional
        Weight of each class; the same on every rank.
    ignore_index : int
        Rows with this label have no loss and are not counted in a mean.
    reduction : {"mean", "sum", "none"}
    label_smoothing : float
        The part of each label's probability that is spread evenly over all classes.

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
        self.ignore_index, self.reduction = integer(ignore_index, "CrossEntropyLoss: ignore_index"), reduction
        self.label_smoothing = number(label_smoothing, "CrossEntropyLoss: label_smoothing", 0, 1)

    def forward(self, input: Any, target: Any) -> Any:
        if self.weight is None:
            return ops.cross_entropy(
                input, target, self.reduction, ignore_index=self.ignore_index, label_smoothing=self.label_smoothing
            )
        return _weighted_nll(
            "CrossEntropyLoss", ops.log_softmax(input, 1), target, self.weight, self.ignore_index,
            self.label_smoothing, self.reduction,
        )  # fmt: skip


class NLLLoss(Module):
    """`nll_loss` as a module."""

    def __init__(self, weight: Any = None, ignore_index: int = -100, reduction: str = "mean"):
        self.weight = None if weight is None else np.asarray(weight)
        self.ignore_index, self.reduction = integer(ignore_index, "NLLLoss: ignore_index"), reduction

    def forward(self, input: Any, target: Any) -> Any:
        return nll_loss(input, target, self.weight, self.ignore_index, self.reduction)


class _ElementwiseLoss(Module):
    def __init__(self, reduction: str = "mean"):
        self.reduction = reduction


class MSELoss(_ElementwiseLoss):
    """`mse_loss` as a module."""

    def forward(self, input: Any, target: Any) -> Any:
        return mse_loss(input, target, self.reduction)


class L1Loss(_ElementwiseLoss):
    """`l1_loss` as a module."""

    def forward(self, input: Any, target: Any) -> Any:
        return l1_loss(input, target, self.reduction)


class SmoothL1Loss(Module):
    """`smooth_l1_loss` as a module."""

    def __init__(self, reduction: str = "mean", beta: float = 1.0):
        self.reduction, self.beta = reduction, number(beta, "SmoothL1Loss: beta", 0)

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
