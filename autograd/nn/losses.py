"""Loss functions, as functions and as modules.

``reduction`` is "none" (a loss per element or row), "sum" or "mean", which is the default, as in torch. The sum and the
mean of sharded rows are Partial: the sum over the ranks is still to be taken. The mean divides by the global count.
"""

from __future__ import annotations

from typing import Any, overload

import numpy as np

from .. import ops
from ..arrays.capture import checked, decided, recorded
from ..arrays.device import arange_beside, as_array, is_inexact, require_one_device, zeros_on
from ..engine.leaves import constant
from ..engine.promotion import composite
from ..engine.state import state
from ..engine.tensor import TENSORS, Tensor
from ..errors import ArgumentError, DtypeError, LayoutError, ShapeError, typed_errors
from ..layouts.layout import R, Shard
from ..layouts.sizes import SizeFloat
from ..ops.arguments import labelled, raw, zero_like
from ..ops.nn.cross_entropy import IGNORED, Rows, mean_of_targets, of_probabilities
from ..ops.ufuncs import clip
from ..random.keys import integer
from .arguments import number
from .module import Module

__all__ = [
    "BCEWithLogitsLoss", "CrossEntropyLoss", "L1Loss", "MSELoss", "NLLLoss", "SmoothL1Loss",
    "binary_cross_entropy_with_logits", "cross_entropy", "l1_loss", "mse_loss", "nll_loss", "smooth_l1_loss",
]  # fmt: skip


def _reduce(losses: Any, reduction: str) -> Any:
    if reduction == "mean":
        return ops.mean(losses)
    if reduction == "sum":
        return ops.sum(losses)
    if reduction != "none":
        raise ShapeError(f"reduction={reduction!r} was given; needed: 'none', 'sum' or 'mean'")
    return losses


def _check_shapes(name: str, x: Any, target: Any) -> None:
    # broadcasting between input and target is nearly always a mistake
    shapes = [a.array.shape if a.__class__ in TENSORS else np.shape(a) for a in (x, target)]
    if shapes[0] != shapes[1]:
        raise ShapeError(f"{name}: input of shape {shapes[0]}, target of shape {shapes[1]}; needed: one shape")


@overload
def mse_loss(input: Tensor, target: Any, *, reduction: str = "mean") -> Tensor: ...
@overload
def mse_loss(input: Any, target: Any, *, reduction: str = "mean") -> Any: ...
@typed_errors
@composite
def mse_loss(input: Any, target: Any, *, reduction: str = "mean") -> Any:
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
    d = ops.subtract(input, target)  # an operation, also of plain arrays
    return _reduce(ops.multiply(d, d), reduction)


@overload
def l1_loss(input: Tensor, target: Any, *, reduction: str = "mean") -> Tensor: ...
@overload
def l1_loss(input: Any, target: Any, *, reduction: str = "mean") -> Any: ...
@typed_errors
@composite
def l1_loss(input: Any, target: Any, *, reduction: str = "mean") -> Any:
    """Absolute error, ``|input - target|``; its derivative at 0 is 0. The parameters are `mse_loss`'s."""
    _check_shapes("l1_loss", input, target)
    return _reduce(ops.absolute(ops.subtract(input, target)), reduction)


@overload
def smooth_l1_loss(input: Tensor, target: Any, *, reduction: str = "mean", beta: float = 1.0) -> Tensor: ...
@overload
def smooth_l1_loss(input: Any, target: Any, *, reduction: str = "mean", beta: float = 1.0) -> Any: ...
@typed_errors
@composite
def smooth_l1_loss(input: Any, target: Any, *, reduction: str = "mean", beta: float = 1.0) -> Any:
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
    d = ops.subtract(input, target)
    if beta == 0:
        return _reduce(ops.absolute(d), reduction)
    near = clip(d, -beta, beta)  # unlike |d| it has no kink at 0
    return _reduce(ops.divide(ops.multiply(near, ops.subtract(d, ops.multiply(0.5, near))), beta), reduction)


@overload
def binary_cross_entropy_with_logits(
    input: Tensor, target: Any, weight: Any = None, *, reduction: str = "mean", pos_weight: Any = None
) -> Tensor: ...
@overload
def binary_cross_entropy_with_logits(
    input: Any, target: Any, weight: Any = None, *, reduction: str = "mean", pos_weight: Any = None
) -> Any: ...
@typed_errors
@composite
def binary_cross_entropy_with_logits(
    input: Any, target: Any, weight: Any = None, *, reduction: str = "mean", pos_weight: Any = None
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
        losses = ops.subtract(ops.softplus(input), ops.multiply(input, target))
    else:
        scale = ops.add(ops.multiply(_as_constant(pos_weight) - 1.0, target), 1.0)
        near = ops.multiply(input, ops.subtract(1.0, target))
        losses = ops.add(near, ops.multiply(scale, ops.softplus(ops.negative(input))))
    return _reduce(losses if weight is None else losses * _as_constant(weight), reduction)


def _as_constant(weight: Any) -> Any:
    """Label an array of weights as equal on all ranks; a Tensor keeps its layout."""
    return weight if weight.__class__ in TENSORS or state.grid is None else constant(weight)


@overload
def cross_entropy(
    input: Tensor, target: Any, weight: Any = None, *, ignore_index: int = IGNORED, reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor: ...  # fmt: skip
@overload
def cross_entropy(
    input: Any, target: Any, weight: Any = None, *, ignore_index: int = IGNORED, reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any: ...  # fmt: skip
def cross_entropy(
    input: Any, target: Any, weight: Any = None, *, ignore_index: int = IGNORED, reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:  # fmt: skip
    """Cross-entropy of logits and labels, ``-log softmax(input)[row, target[row]]`` of each row.

    With label smoothing s, the labels have the probability ``1 - s``, and each class s / classes more. A mean is
    divided by the number of rows that are not ignored, or with weights by the sum of the weights of their labels. That
    of probabilities is divided by the number of rows. A mean over no row is NaN, with the gradient 0, as in torch.

    Parameters
    ----------
    input : Tensor or array, [n, classes], [n, classes, ...] or [classes]
        Logits. The classes may not be sharded.
    target : array of int, [n], [n, ...] or []; or array of the shape of `input`
        Labels, or the probabilities of the classes, which may have a gradient and ignore no row.
    weight : array, [classes], optional
        Weight of each class; the same on every rank.
    ignore_index : int
        Rows with this label have no loss and are not counted in a mean.
    reduction : {"mean", "sum", "none"}
    label_smoothing : float
        The part of each label's probability that is spread evenly over all classes (Szegedy et al. 2016, section 7).

    Returns
    -------
    Tensor or array
        One number, or with "none" a loss for each label. A sum or mean over sharded rows is Partial.

    Raises
    ------
    ShapeError
        The shapes do not fit, a label is out of range, or `reduction` or `label_smoothing` is not allowed.
    DtypeError
        The labels are neither integers nor probabilities.
    LayoutError
        The classes are sharded; a mean over sharded rows, some of which are ignored: each rank would divide by its own
        count.

    Notes
    -----
    Adjoint: ``ct * (softmax(input) - one_hot(target))`` row by row.

    Examples
    --------
    >>> import numpy
    >>> from autograd import nn
    >>> float(nn.cross_entropy(numpy.zeros((3, 4)), numpy.array([0, 3, -100])).round(6))
    1.386294
    """
    if weight is None:
        return ops.cross_entropy(
            input, target, reduction, ignore_index=ignore_index, label_smoothing=label_smoothing
        )
    return _weighted_cross_entropy(input, target, weight, ignore_index, reduction, label_smoothing)


@typed_errors
@composite
def _weighted_cross_entropy(
    input: Any, target: Any, weight: Any, ignore_index: Any, reduction: str, label_smoothing: Any
) -> Any:
    if isinstance(weight, str):
        raise ArgumentError(
            f"cross_entropy: weight={weight!r} was given; needed: a weight for each class\n  fix: "
            f"reduction={weight!r}"
        )
    ignore_index = integer(ignore_index, "cross_entropy: ignore_index")
    label_smoothing = number(label_smoothing, "cross_entropy: label_smoothing", 0, 1)
    of_target = target.array if target.__class__ in TENSORS else as_array(target)
    if is_inexact(of_target.dtype) and of_target.shape == raw(input).shape:
        shape = raw(input).shape
        w = _class_weights("cross_entropy", input, weight, shape[min(len(shape) - 1, 1)])
        return of_probabilities(input, target, _as_constant(w), ignore_index, reduction, label_smoothing)
    rows = Rows("cross_entropy", input, target if target.__class__ in TENSORS else of_target)
    log_p = ops.log_softmax(rows.logits, 1)
    losses = _weighted_nll("cross_entropy", log_p, rows.labels, weight, ignore_index, label_smoothing, reduction)
    return rows.back(losses) if reduction == "none" else losses


@overload
def nll_loss(
    input: Tensor, target: Any, weight: Any = None, *, ignore_index: int = IGNORED, reduction: str = "mean"
) -> Tensor: ...
@overload
def nll_loss(
    input: Any, target: Any, weight: Any = None, *, ignore_index: int = IGNORED, reduction: str = "mean"
) -> Any: ...
@typed_errors
@composite
def nll_loss(
    input: Any, target: Any, weight: Any = None, *, ignore_index: int = IGNORED, reduction: str = "mean"
) -> Any:
    """Negative log-likelihood, ``-weight[t] input[row, t]`` for the label t of each row.

    A mean is divided by the sum of the weights of the rows. Over no row it is NaN, with the gradient 0, as in torch.

    Parameters
    ----------
    input : Tensor or array, [n, classes], [n, classes, ...] or [classes]
        Log-probabilities.
    target : array of int, [n], [n, ...] or []
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
        A mean over sharded rows with class weights, or with rows that are ignored: each rank would divide by its own
        count.

    Examples
    --------
    >>> import numpy
    >>> from autograd import nn
    >>> float(nn.nll_loss(numpy.log(numpy.full((2, 4), 0.25)), numpy.array([0, -100])).round(6))
    1.386294
    """
    rows = Rows("nll_loss", input, target if target.__class__ in TENSORS else as_array(target))
    losses = _weighted_nll("nll_loss", rows.logits, rows.labels, weight, ignore_index, 0.0, reduction)
    return rows.back(losses) if reduction == "none" else losses


def _weighted_nll(
    name: str, log_p: Any, target: Any, weight: Any, ignored: int, smoothing: float, reduction: str
) -> Any:
    """Negative log-likelihood of rows with class weights, ignored labels and label smoothing."""
    seen, of_classes, of_rows = _weights(name, log_p, target, weight, ignored, smoothing)
    losses = ops.multiply(ops.sum(ops.multiply(log_p, of_classes), -1), -1.0)
    losses = ops.where(seen, losses, zero_like(losses))  # so that ignored rows get 0 also of an infinite cotangent
    if reduction != "mean":
        return _reduce(losses, reduction)
    if losses.__class__ in TENSORS and losses.layout is not None and losses.layout.special:
        if weight is None and not _has_ignored(target, ignored):
            return ops.mean(losses)
        raise LayoutError(mean_of_targets(losses, name, target, ignored, weight is not None))
    with np.errstate(invalid="ignore"):  # of no row: NaN, as torch's
        weight_of_rows = ops.sum(of_rows)
        if isinstance(weight_of_rows, np.generic) and losses.__class__ in TENSORS:
            # the losses are of its dtype; a captured step computes it at each replay
            is_row = state.recorder is not None and state.grid is None
            weight_of_rows = Tensor(weight_of_rows) if is_row else SizeFloat(weight_of_rows, counts="own")
        return ops.divide(ops.sum(losses), weight_of_rows)


def _has_ignored(target: Any, ignored: int) -> bool:
    """Whether a mean must leave out rows of this rank's part.

    A label that was chosen to be ignored is taken to occur. The default, which is no class, is looked for, so that the
    losses have torch's default, and a mean of sharded rows needs no communication where no label is ignored. A rank
    that finds it raises the error, which ends the job.
    """
    raw = as_array(getattr(target, "array", target))
    return ignored != IGNORED or type(raw) is not np.ndarray or decided(_occurs, raw, ignored)  # on a GPU it may occur


def _occurs(labels: Any, ignored: int) -> bool:
    return bool((labels == ignored).any())


def _class_weights(name: str, x: Any, weight: Any, classes: int) -> Any:
    """Check the weights of the classes, the same on all ranks; return them as an array of the dtype of `x`."""
    array = x.array if x.__class__ in TENSORS else x
    weight = getattr(weight, "array", weight)
    if weight is None:
        w = recorded(_ones, array, classes)
    else:
        w = recorded(as_array, weight, array.dtype, name="weights of classes")
    if w.shape != (classes,):
        raise ShapeError(f"{name}: weight of shape {w.shape}; needed: ({classes},), one per class")
    layout = x.layout if x.__class__ in TENSORS else None
    if weight is not None and layout is not None and not state.in_rules:
        parts_of_one = [R if type(label) is Shard else label for label in layout.labels]
        state.distribution.note_constant(f"{name} with class weights", layout.grid.layout(parts_of_one), w)
    return w


def _weights(name: str, x: Any, target: Any, weight: Any, ignored: int, smoothing: float) -> tuple[Any, Any, Any]:
    """The rows that are not ignored, [n], and the weights of log-probabilities, [n, classes], and of rows, [n]."""
    raw = target.array if target.__class__ in TENSORS else as_array(target)
    require_one_device(name, input=x, target=target, weight=weight)
    array = x.array if x.__class__ in TENSORS else x
    if raw.dtype.kind not in "iu":
        raise DtypeError(f"{name}: labels of dtype {raw.dtype} were given; needed: integers")
    classes = array.shape[1]
    if type(raw) is np.ndarray:
        checked(_require_labels, raw, classes, ignored, name)
    w = _class_weights(name, x, weight, classes)
    seen, of_classes, of_rows = recorded(_weights_of, raw, w, classes, ignored, float(smoothing), name=name)
    if target.__class__ in TENSORS:
        return labelled(seen, target), Tensor(of_classes, target.layout), Tensor(of_rows, target.layout)
    return seen, of_classes, of_rows


def _ones(beside: Any, n: int) -> Any:
    return zeros_on(beside, (n,), beside.dtype) + 1


def _require_labels(labels: Any, classes: int, ignored: int, name: str) -> None:
    if ((labels != ignored) & ((labels < 0) | (labels >= classes))).any():
        raise ShapeError(f"{name}: labels must lie in 0..{classes - 1}, or be {ignored} (ignored)")


def _weights_of(labels: Any, w: Any, classes: int, ignored: int, smoothing: float) -> tuple[Any, Any, Any]:
    seen = labels != ignored
    one_hot = (labels[:, None] == arange_beside(labels, classes)).astype(w.dtype)
    return seen, (one_hot * (1 - smoothing) + smoothing / classes) * w * seen[:, None], (one_hot * w).sum(axis=1) * seen


class CrossEntropyLoss(Module):
    """`cross_entropy` as a module: of logits [n, classes, ...] and labels [n, ...], or probabilities.

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

    weight: Any

    def __init__(
        self, weight: Any = None, *, ignore_index: int = IGNORED, reduction: str = "mean", label_smoothing: float = 0.0
    ):
        self.register_buffer("weight", weight, persistent=False)
        self.ignore_index, self.reduction = integer(ignore_index, "CrossEntropyLoss: ignore_index"), reduction
        self.label_smoothing = number(label_smoothing, "CrossEntropyLoss: label_smoothing", 0, 1)

    def forward(self, input: Any, target: Any) -> Tensor:
        return cross_entropy(
            input, target, self.weight, ignore_index=self.ignore_index, reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )  # fmt: skip


class NLLLoss(Module):
    """`nll_loss` as a module."""

    weight: Any

    def __init__(self, weight: Any = None, *, ignore_index: int = IGNORED, reduction: str = "mean"):
        self.register_buffer("weight", weight, persistent=False)
        self.ignore_index, self.reduction = integer(ignore_index, "NLLLoss: ignore_index"), reduction

    def forward(self, input: Any, target: Any) -> Tensor:
        return nll_loss(input, target, self.weight, ignore_index=self.ignore_index, reduction=self.reduction)


class _ElementwiseLoss(Module):
    def __init__(self, *, reduction: str = "mean"):
        self.reduction = reduction


class MSELoss(_ElementwiseLoss):
    """`mse_loss` as a module."""

    def forward(self, input: Any, target: Any) -> Tensor:
        return mse_loss(input, target, reduction=self.reduction)


class L1Loss(_ElementwiseLoss):
    """`l1_loss` as a module."""

    def forward(self, input: Any, target: Any) -> Tensor:
        return l1_loss(input, target, reduction=self.reduction)


class SmoothL1Loss(Module):
    """`smooth_l1_loss` as a module."""

    def __init__(self, *, reduction: str = "mean", beta: float = 1.0):
        self.reduction, self.beta = reduction, number(beta, "SmoothL1Loss: beta", 0)

    def forward(self, input: Any, target: Any) -> Tensor:
        return smooth_l1_loss(input, target, reduction=self.reduction, beta=self.beta)


class BCEWithLogitsLoss(Module):
    """`binary_cross_entropy_with_logits` as a module."""

    weight: Any
    pos_weight: Any

    def __init__(self, weight: Any = None, *, reduction: str = "mean", pos_weight: Any = None):
        self.register_buffer("weight", weight, persistent=False)
        self.register_buffer("pos_weight", pos_weight, persistent=False)
        self.reduction = reduction

    def forward(self, input: Any, target: Any) -> Tensor:
        return binary_cross_entropy_with_logits(
            input, target, self.weight, reduction=self.reduction, pos_weight=self.pos_weight
        )
