"""Operations that are one for speed or accuracy: log-sum-exp, softmax, cross-entropy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import DtypeError, ShapeError
from ..layout import Mix, Sum
from ..primitive import op
from ..sites import call_site
from ..tensor import TENSORS, Tensor
from .elementwise import exp
from .shape import expand_dims, reshape

Shape = tuple[int, ...]
_ROW = Sum("row")


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
    weighted = ct * y
    return weighted - y * weighted.sum(axis=axis, keepdims=True)


_softmax_op = op(
    "softmax", "N", _softmax, _softmax_rule, saves="y", dims=_rows_dims, operands="x",
    tangent=(_softmax_rule,),  # the Jacobian diag(y) - y y' is symmetric
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
    """log(softmax(x)), without overflow."""
    axis = _axis(x, axis)
    return x - expand_dims(logsumexp(x, axis), axis)


# -- cross-entropy: the loss of each row, -log softmax(x)[row, label] ----------------------------------------


def _cross_entropy_dims(shapes: Sequence[Shape], options: Any) -> Any:
    return [(0, Mix), (0,)]


def _places(labels: np.ndarray, classes: int) -> np.ndarray:
    """Where each row's label stands in the flat logits: one index is three times as fast as a pair of them."""
    n = len(labels)
    starts = _row_starts.get((n, classes))
    if starts is None:
        if len(_row_starts) > 64:
            _row_starts.clear()
        starts = _row_starts[n, classes] = np.arange(n) * classes
    return starts + labels


_row_starts: dict[tuple[int, int], np.ndarray] = {}
_UNSIGNED = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}
_add_reduce: Any = np.add.reduce  # np.sum without its wrapper


def _check_labels(labels: np.ndarray, classes: int) -> None:
    """Refuse labels out of range. Seen as unsigned, a negative one is a huge one, so one look finds both."""
    if not labels.size:
        return
    unsigned = labels.view(_UNSIGNED[labels.dtype.itemsize])
    if unsigned[unsigned.argmax()] >= classes:  # argmax is several times as fast as max
        raise ShapeError(
            f"labels must lie in 0..{classes - 1}, one per class; {labels.min()} to {labels.max()} were given" +
            call_site()
        )


def _cross_entropy_keeping(logits: Any, labels: Any) -> tuple[Any, Any]:
    """The rows' losses, and what the cotangent is made of: exp(logits - top), its sums, the labels' flat places."""
    n, classes = logits.shape
    if type(labels) is np.ndarray:
        _check_labels(labels, classes)
    if type(logits) is not np.ndarray or type(labels) is not np.ndarray:
        top = np.max(logits, axis=1)
        picked = logits[np.arange(n), labels]
        return np.log(np.sum(np.exp(logits - top[:, None]), axis=1)) - (picked - top), None
    top = logits.take(_places(logits.argmax(1), classes))  # of few classes several times as fast as max
    exps = np.subtract(logits, top[:, None], order="C")
    places = _places(labels, classes)
    picked = exps.take(places)
    np.exp(exps, exps)
    sums = _add_reduce(exps, 1)
    losses = np.log(sums)
    losses -= picked
    return losses, (exps, sums, places)


def _cross_entropy(logits: Any, labels: Any) -> Any:
    return _cross_entropy_keeping(logits, labels)[0]


def _one_hot_minus(ct: Any, kept: Any, logits: Any, labels: Any) -> Any:
    """softmax(x) - one-hot, times each row's cotangent."""
    if kept is None:
        return reshape(ct, (*ct.shape, 1)) * (softmax(logits, 1) - one_hot(labels, logits))
    exps, sums, places = kept
    g = exps * (ct / sums)[:, None]
    g.reshape(-1)[places] -= ct
    return g


def one_hot(labels: Any, like: Any) -> Any:
    """Rows of zeros with a one at each label, of the shape and dtype of `like`."""
    raw = labels.array if hasattr(labels, "tape") else labels
    columns = np.cumsum(np.ones_like(like.array if like.__class__ in TENSORS else like), axis=1) - 1  # where like lives
    hot = (raw[:, None] == columns).astype(like.dtype)
    return Tensor(hot, labels.layout) if hasattr(labels, "tape") else hot


cross_entropy_op = op(
    "cross_entropy", "N S", _cross_entropy, (_one_hot_minus, None), saves="01", dims=_cross_entropy_dims,
    operands="logits labels", promotes=False, keeping=_cross_entropy_keeping,
)  # fmt: skip


def _cross_entropy_sum_keeping(logits: Any, labels: Any) -> tuple[Any, Any]:
    losses, kept = _cross_entropy_keeping(logits, labels)
    return (_add_reduce(losses) if type(losses) is np.ndarray else np.sum(losses)), kept


def _sum_one_hot_minus(ct: Any, kept: Any, logits: Any, labels: Any) -> Any:
    """The same for the sum of the rows' losses: one cotangent for all."""
    return ct * (softmax(logits, 1) - one_hot(labels, logits)) if kept is None else _one_hot_minus(ct, kept, None, None)


cross_entropy_sum = op(
    "cross_entropy_sum", "N S", lambda logits, labels: _cross_entropy_sum_keeping(logits, labels)[0],
    (_sum_one_hot_minus, None), saves="01", dims=lambda shapes, options: [(_ROW, Mix), (_ROW,)],
    operands="logits labels", promotes=False, keeping=_cross_entropy_sum_keeping,
)  # fmt: skip


def cross_entropy(logits: Any, labels: Any, reduction: str = "none") -> Any:
    """The loss of each row, or their sum: ``-log softmax(logits)[row, labels[row]]``.

    Parameters
    ----------
    logits : [n, classes]; the classes may not be sharded
    labels : [n], integers
    reduction : "none" or "sum"
        There is no "mean": divide the sum by the *global* count, which no layer knows.

    Returns
    -------
    [n], or one number: Partial where the rows are sharded.

    Raises
    ------
    ShapeError, DtypeError
        Shapes that do not fit, labels out of range or not integers.

    Examples
    --------
    >>> import numpy
    >>> from autograd import nn
    >>> nn.cross_entropy(numpy.zeros((2, 4)), numpy.array([0, 3]), reduction="sum").round(4)
    np.float64(2.7726)
    """
    if reduction not in ("none", "sum"):
        raise ShapeError(
            f"reduction={reduction!r} was given; needed: 'none' or 'sum' (for a mean, divide the sum by the "
            f"global count)"
        )
    raw = labels.array if labels.__class__ in TENSORS else labels
    array = logits.array if logits.__class__ in TENSORS else logits
    if getattr(raw, "dtype", np.dtype(float)).kind not in "iu":
        raise DtypeError(f"labels of dtype {getattr(raw, 'dtype', type(raw))} were given; needed: integers")
    if len(array.shape) != 2 or raw.shape != array.shape[:1]:
        raise ShapeError(
            f"logits of shape {array.shape} and labels of shape {raw.shape} were given; needed: [n, classes] and [n]"
        )
    if reduction == "none":
        return cross_entropy_op(logits, labels)
    if labels.__class__ in TENSORS or logits.__class__ not in TENSORS:
        return cross_entropy_sum(logits, labels)
    return cross_entropy_op(logits, labels).sum()


__all__ = ["cross_entropy", "log_softmax", "logsumexp", "one_hot", "softmax"]
