"""Cross-entropy: the loss of each row, ``-log softmax(x)[row, label]``, without the probabilities between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...engine.dispatch import ones
from ...engine.primitive import op
from ...engine.tensor import TENSORS, Tensor
from ...errors import DtypeError, LayoutError, ShapeError, call_site
from ...kernels import compiled
from ...layouts.layout import Mix, Sum
from ..elementwise import not_equal, where
from ..reductions import mean
from ..reductions import sum as total
from ..shape import reshape
from .fused import Fused
from .softmax import logsumexp, softmax

Shape = tuple[int, ...]
_ROW = Sum("row")
_LARGE = 1 << 15
"""From this many logits on the kernel is faster than whole arrays are, whose operations are made for small ones."""


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


_FEW = 1 << 12
"""Up to this number of logits a compiled loop is faster than NumPy's calls."""


def _cross_entropy_keeping(logits: Any, labels: Any) -> tuple[Any, Any]:
    """The rows' losses, and what the cotangent is made of: exp(logits - top), its sums, the labels' flat places.

    A compiled loop needs no places: None. It gives up at a label that is no class.
    """
    n, classes = logits.shape
    dtype = logits.dtype
    loop = compiled.find("cross_entropy", dtype) if 0 < n * classes <= _FEW else None
    if loop is not None and compiled.are_bare(dtype, logits) and compiled.are_bare(compiled.INT64, labels):
        losses, exps, sums = np.empty(n, dtype), np.empty((n, classes), dtype), np.empty(n, dtype)
        if loop(logits, labels, losses, exps, sums):
            return losses, (exps, sums, None)
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
    sums = exps.dot(ones(classes, exps.dtype))  # BLAS, in half the time of a sum
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
    if places is None:
        loop = compiled.find("cross_entropy_backward", exps.dtype)
        g, ct = np.empty_like(exps), ct * ones(len(sums), sums.dtype)
        fits = ct.shape == sums.shape and compiled.are_bare(exps.dtype, ct)
        if loop is not None and fits and loop(ct, exps, sums, labels, g):
            return g
        places = _places(labels, exps.shape[1])
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
    return (losses.dot(ones(len(losses), losses.dtype)) if kept is not None else np.sum(losses)), kept


def _sum_one_hot_minus(ct: Any, kept: Any, logits: Any, labels: Any) -> Any:
    """The same for the sum of the rows' losses: one cotangent for all."""
    if kept is not None:
        return _one_hot_minus(ct, kept, logits, labels)
    return ct * (softmax(logits, 1) - one_hot(labels, logits))


cross_entropy_sum = op(
    "cross_entropy_sum", "N S", lambda logits, labels: _cross_entropy_sum_keeping(logits, labels)[0],
    (_sum_one_hot_minus, None), saves="01", dims=lambda shapes, options: [(_ROW, Mix), (_ROW,)],
    operands="logits labels", promotes=False, keeping=_cross_entropy_sum_keeping,
)  # fmt: skip


# -- with labels to ignore, or smoothed ------------------------------------------------------------------------------


def _seen(labels: Any, ignored: int | None, like: Any) -> Any:
    """Which rows count, [n, 1]; None for all."""
    return None if ignored is None else reshape(not_equal(labels, ignored), (len(like), 1))


def _smoothed(logits: Any, labels: Any, ignored: int | None, smoothing: float) -> Any:
    classes = logits.shape[1]
    hot = one_hot(labels, logits) * (1.0 - smoothing) + smoothing / max(classes, 1)
    losses = logsumexp(logits, 1) - np.sum(logits * hot, axis=1)
    return losses if ignored is None else np.where(labels != ignored, losses, 0.0)


def _smoothed_rule(ct: Any, y: Any, logits: Any, labels: Any, ignored: int | None, smoothing: float) -> Any:
    classes = logits.shape[1]
    g = reshape(ct, (*ct.shape, 1)) * (
        softmax(logits, 1) - (one_hot(labels, logits) * (1.0 - smoothing) + smoothing / max(classes, 1))
    )
    return g if ignored is None else where(_seen(labels, ignored, ct), g, 0.0)


smoothed_cross_entropy_op = Fused(
    "smoothed_cross_entropy", "N S", _smoothed, (_smoothed_rule, None), saves="01", dims=_cross_entropy_dims,
    operands="logits labels", promotes=False, kernel="cross_entropy",
)  # fmt: skip


def cross_entropy(
    logits: Any, labels: Any, reduction: str = "none", *, ignore_index: int | None = None, label_smoothing: float = 0.0
) -> Any:
    """The loss of each row, their sum or their mean: ``-log softmax(logits)[row, labels[row]]``.

    Parameters
    ----------
    logits : [n, classes]; the classes may not be sharded
    labels : [n], integers
    reduction : "none", "sum" or "mean"
        The mean is that of the rows that are not ignored, and of this process: where the rows are sharded it is
        refused, because a mean of parts is not the whole's. Divide the sum by the *global* count there.
    ignore_index : int, optional
        Rows with this label have no loss and no gradient.
    label_smoothing : float
        This much of each target is spread evenly over all classes (Szegedy et al. 2016, section 7).

    Returns
    -------
    [n], or one number: Partial where the rows are sharded.

    Raises
    ------
    ShapeError, DtypeError, LayoutError
        Shapes that do not fit, labels out of range or not integers; a mean over sharded rows.

    Examples
    --------
    >>> import numpy
    >>> from autograd import nn
    >>> nn.cross_entropy(numpy.zeros((2, 4)), numpy.array([0, 3]), reduction="sum").round(4)
    np.float64(2.7726)
    """
    if reduction not in ("none", "sum", "mean"):
        raise ShapeError(f"reduction={reduction!r} was given; needed: 'none', 'sum' or 'mean'")
    raw = labels.array if labels.__class__ in TENSORS else labels
    array = logits.array if logits.__class__ in TENSORS else logits
    if not hasattr(raw, "dtype") or raw.dtype.kind not in "iu":
        raise DtypeError(f"labels of dtype {getattr(raw, 'dtype', type(raw))} were given; needed: integers")
    if len(array.shape) != 2 or raw.shape != array.shape[:1]:
        raise ShapeError(
            f"logits of shape {array.shape} and labels of shape {raw.shape} were given; needed: [n, classes] and [n]"
        )
    if ignore_index is None and not label_smoothing and array.size < _LARGE:
        if reduction == "none":
            return cross_entropy_op(logits, labels)
        if reduction == "mean":
            return mean(cross_entropy_op(logits, labels))
        if labels.__class__ in TENSORS or logits.__class__ not in TENSORS:
            return cross_entropy_sum(logits, labels)
        return cross_entropy_op(logits, labels).sum()
    if not 0 <= label_smoothing <= 1:
        raise ShapeError(f"label_smoothing={label_smoothing} was given; needed: 0 to 1")
    if type(raw) is np.ndarray:
        _check_labels(raw if ignore_index is None else raw[raw != ignore_index], array.shape[1])
    losses = smoothed_cross_entropy_op(logits, labels, options=(ignore_index, float(label_smoothing)))
    if reduction == "none":
        return losses
    if reduction == "sum":
        return total(losses)
    if ignore_index is None:
        return mean(losses)
    if losses.__class__ in TENSORS and losses.layout is not None and losses.layout.special:
        raise LayoutError(
            f"cross_entropy(reduction='mean') of rows that are sharded, {losses.layout!r}: each rank would divide by "
            "its own count. Fix: reduction='sum', divided by the global count of rows that are not ignored"
            + call_site()
        )
    return total(losses) / float(np.count_nonzero(raw != ignore_index))


__all__ = ["cross_entropy", "one_hot"]
