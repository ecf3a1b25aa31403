"""Cross-entropy: the loss of each row, ``-log softmax(x)[row, label]``, computed without storing probabilities."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import index
from typing import Any, overload

import numpy as np

from ...arrays.capture import checked, decided, recorded
from ...arrays.device import arange_beside, is_inexact, require_one_device
from ...arrays.shape_only import Shaped
from ...engine.dispatch import ones
from ...engine.events import listeners
from ...engine.primitive import op
from ...engine.promotion import composite
from ...engine.state import state
from ...engine.tensor import TENSORS, Tensor
from ...errors import UNTYPED, DtypeError, LayoutError, OptionError, RingtapeError, ShapeError, refused
from ...kernels import INT64, are_bare, find, loop
from ...layouts.layout import Mix, Shard, Sum
from ...layouts.messages import describe
from ...layouts.names import name_of, view_of
from ...layouts.sizes import SizeFloat
from ..arguments import constant_like, labelled, raw, stack, zero_like
from ..elementwise import not_equal, where
from ..reductions import mean
from ..reductions import sum as total
from ..shape import reshape, transpose
from .fused import Fused
from .softmax import log_softmax, logsumexp, softmax

Shape = tuple[int, ...]
_ROW = Sum("row")
_MIN_KERNEL_SIZE = 1 << 15
"""From this number of logits on the fused kernel is faster than the operations on whole arrays."""


def as_rows(logits: Shape, labels: Shape) -> str:
    """The line of an error about sequences of logits: how to make rows of them."""
    if len(logits) < 3 or math.prod(logits[:-1]) != math.prod(labels):
        return ""
    return f"\n  fix: logits.reshape(-1, {logits[-1]}) and labels.reshape(-1)"


def mean_of_targets(losses: Any, caller: str, labels: Any, ignored: int, has_weights: bool = False) -> str:
    """The text of the error for a mean over the labels of sharded rows that are not ignored."""
    axis, label = next((a, x) for a, x in losses.layout.items() if type(x) is Shard)
    name = name_of(labels, "") or view_of(labels)[0] or "labels"
    own = f"({name} != {ignored}).sum()"
    if has_weights:
        plain = f"{name}.numpy()" if labels.__class__ in TENSORS else name
        own = f"weight[{plain}[{plain} != {ignored}]].sum()"
    what = "the weights of the labels" if has_weights else "the number of the labels"
    return (
        f"{caller}(reduction='mean'), whose losses are {describe(losses.array, losses.array.shape, losses.layout)}\n"
        f"  axis {axis!r}: the losses are {label!r}, and each rank would divide the sum of its own part by its own "
        f"{'weights' if has_weights else 'count'}\n  fix: {caller}(..., reduction='sum') / "
        f"cc.all_reduce({own}, {axis!r}, to=R)   ({what} of all ranks that are not {ignored}, which is ignored; "
        f"Partial: then sum it over the ranks, all_reduce(loss, {axis!r}, to=I))"
    )


def _cross_entropy_dims(shapes: Sequence[Shape], options: Any) -> Any:
    return [(0, Mix), (0,)]


def _flat_label_indices(labels: np.ndarray, classes: int) -> np.ndarray:
    """The index of each row's label in the flattened logits: one index is three times as fast as a pair."""
    n = len(labels)
    starts = _ROW_STARTS[n, classes]
    return starts + (labels if labels.dtype.kind == "i" else labels.astype(np.intp))  # int64 + uint64 is a float


class _RowStarts(dict[tuple[int, int], np.ndarray]):
    """The index of each row's first element, by the numbers of rows and classes; of the last 64 shapes at most."""

    def __missing__(self, shape: tuple[int, int]) -> np.ndarray:
        if len(self) >= 64:
            self.clear()
        n, classes = shape
        starts = self[shape] = np.arange(n) * classes
        return starts


_ROW_STARTS = _RowStarts()
_UNSIGNED = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}


def _check_labels(labels: np.ndarray, classes: int) -> None:
    """Raise ShapeError for labels out of range.

    Viewed as unsigned integers negative labels are huge, so that the maximum shows labels out of range at both ends.
    """
    if not labels.size:
        return
    unsigned = labels.view(_UNSIGNED[labels.dtype.itemsize])
    if unsigned[unsigned.argmax()] >= classes:  # argmax is several times as fast as max
        raise ShapeError(
            f"labels from {labels.min()} to {labels.max()} were given for {classes} classes; needed: labels in "
            f"0..{classes - 1}"
        )


_FEW = 1 << 12
"""Up to this number of logits a compiled loop is faster than NumPy's calls."""


def _cross_entropy_keeping(logits: Any, labels: Any) -> tuple[Any, Any]:
    """The losses of the rows, and what the adjoint needs: exp(logits - top), its row sums, the flat label indices.

    The flat indices are None where a compiled loop ran, which does not need them. The loop gives up at a label that is
    out of range, and the code after it raises the error.
    """
    n, classes = logits.shape
    dtype = logits.dtype
    compiled = loop("cross_entropy", dtype) if 0 < n * classes <= _FEW else None
    if compiled is not None and are_bare(dtype, logits) and are_bare(INT64, labels):
        if type(logits) is np.ndarray:
            losses, exps, sums = np.empty(n, dtype), np.empty((n, classes), dtype), np.empty(n, dtype)
        else:  # `like` costs a tenth of a microsecond
            losses, exps = np.empty(n, dtype, like=logits), np.empty((n, classes), dtype, like=logits)
            sums = np.empty(n, dtype, like=logits)
        if compiled(logits, labels, losses, exps, sums):
            return losses, (exps, sums, None)
    if labels.__class__ is np.ndarray:
        _check_labels(labels, classes)
    if logits.__class__ is not np.ndarray or labels.__class__ is not np.ndarray:
        top = np.max(logits, axis=1)
        picked = logits[arange_beside(logits, n), labels]
        return np.log(np.sum(np.exp(logits - top[:, None]), axis=1)) - (picked - top), None
    top = logits.take(_flat_label_indices(logits.argmax(1), classes))  # faster than max where there are few classes
    exps = np.subtract(logits, top[:, None], order="C")
    indices = _flat_label_indices(labels, classes)
    picked = exps.take(indices)
    np.exp(exps, exps)
    sums = exps.dot(ones(classes, exps.dtype))  # a BLAS product takes half the time of np.sum
    losses = np.log(sums)
    losses -= picked
    return losses, (exps, sums, indices)


def _cross_entropy_adjoint(ct: Any, kept: Any, logits: Any, labels: Any) -> Any:
    """``ct * (softmax(x) - one_hot(labels))``, row by row."""
    if kept is None:  # `ct` has a number for each row, or one for the sum of all losses
        return reshape(ct, (*ct.shape, 1)) * (softmax(logits, 1) - one_hot(labels, logits))
    exps, sums, indices = kept
    if indices is None:
        compiled = loop("cross_entropy_backward", exps.dtype)
        g, ct = np.empty_like(exps), ct * ones(len(sums), sums.dtype)
        fits = ct.shape == sums.shape and are_bare(exps.dtype, ct)
        if compiled is not None and fits and compiled(ct, exps, sums, labels, g):
            return g
        indices = _flat_label_indices(labels, exps.shape[1])
    g = exps * (ct / sums)[:, None]
    g.reshape(-1)[indices] -= ct
    return g


def one_hot(labels: Any, like: Any) -> Any:
    """Return rows of zeros with a one at each label, of the shape and dtype of `like`; labelled as `labels`."""
    return labelled(recorded(_rows_with_ones, raw(labels), raw(like)), labels)


def _rows_with_ones(labels: Any, like: Any) -> Any:
    columns = np.cumsum(np.ones_like(like), axis=1) - 1  # computed from `like`, to be on its device
    return (labels[:, None] == columns).astype(like.dtype)


def _refuse_parts_of_classes(logits: Tensor) -> None:
    """Raise LayoutError where each rank has the logits of some classes: a label counts from the first of all."""
    layout: Any = logits.layout
    for k, label in enumerate(layout.labels):
        if type(label) is Shard and label.dim == 1:
            axis = layout.grid.names[k]
            raise LayoutError(
                f"cross_entropy(logits: {describe(logits.array, logits.array.shape, logits.layout)})\n  axis {axis!r}: "
                f"the classes are {label!r}, and a softmax is over all of them\n"
                f"  fix: {{'loss': Vocabulary({axis!r})}} in the plan of `parallel`, for an nn.CrossEntropyLoss, which "
                f"gathers no logits\n  or:  all_gather(logits, {axis!r}, dim=1)   (a gather forward, a reduce-scatter "
                "in backward)"
            )


cross_entropy_op = op(
    "cross_entropy", "N S", lambda logits, labels: _cross_entropy_keeping(logits, labels)[0],
    (_cross_entropy_adjoint, None), saves="01", dims=_cross_entropy_dims,
    operands="logits labels", promotes=False, keeping=_cross_entropy_keeping, sensitive=True,
)  # fmt: skip


def _cross_entropy_sum_keeping(logits: Any, labels: Any) -> tuple[Any, Any]:
    losses, kept = _cross_entropy_keeping(logits, labels)
    return (losses.dot(ones(len(losses), losses.dtype)) if kept is not None else np.sum(losses)), kept


cross_entropy_sum = op(
    "cross_entropy_sum", "N S", lambda logits, labels: _cross_entropy_sum_keeping(logits, labels)[0],
    (_cross_entropy_adjoint, None), saves="01", dims=lambda shapes, options: [(_ROW, Mix), (_ROW,)],
    operands="logits labels", promotes=False, keeping=_cross_entropy_sum_keeping, sensitive=True,
)  # fmt: skip


# -- with ignored labels or label smoothing --------------------------------------------------------------------------


def _target(labels: Any, like: Any, smoothing: float, classes: int) -> Any:
    """The probabilities of the labels, [n, k]; zeros, but for smoothing, in a row whose label is -1."""
    return one_hot(labels, like) * (1.0 - smoothing) + smoothing / max(classes, 1)


def _smoothed(logits: Any, labels: Any, ignored: int | None, smoothing: float) -> Any:
    linear = np.sum(logits * _target(labels, logits, smoothing, logits.shape[1]), axis=1)
    losses = logsumexp(logits, 1) - linear
    return losses if ignored is None else np.where(labels != ignored, losses, 0.0)


def _smoothed_adjoint(ct: Any, y: Any, logits: Any, labels: Any, ignored: int | None, smoothing: float) -> Any:
    slope = softmax(logits, 1) - _target(labels, logits, smoothing, logits.shape[1])
    g = reshape(ct, (*ct.shape, 1)) * slope
    if ignored is None:
        return g
    is_read = reshape(not_equal(labels, ignored), (ct.shape[0], 1))
    return where(is_read, g, zero_like(g))  # also where the cotangent is infinite


smoothed_cross_entropy_op = Fused(
    "smoothed_cross_entropy", "N S", _smoothed, (_smoothed_adjoint, None), saves="01", dims=_cross_entropy_dims,
    operands="logits labels", promotes=False, kernel="losses.cross_entropy", sensitive=True,
)  # fmt: skip


# -- of some of the classes ------------------------------------------------------------------------------------------


def _class_terms(logits: Any, labels: Any, smoothing: float, classes: int) -> Any:
    linear = np.sum(logits * _target(labels, logits, smoothing, classes), axis=1)
    return np.stack([logsumexp(logits, 1), linear])


def _class_terms_adjoint(ct: Any, y: Any, logits: Any, labels: Any, smoothing: float, classes: int) -> Any:
    """``ct_0 softmax(logits) + ct_1 target``, row by row."""
    return ct[0][:, None] * softmax(logits, 1) + ct[1][:, None] * _target(labels, logits, smoothing, classes)


def _class_terms_tangent(dx: Any, y: Any, logits: Any, labels: Any, smoothing: float, classes: int) -> Any:
    target = _target(labels, logits, smoothing, classes)
    return stack([total(dx * softmax(logits, 1), 1), total(dx * target, 1)])


class_terms = Fused(
    "class_terms", "N S", _class_terms, (_class_terms_adjoint, None), saves="01",
    dims=lambda shapes, options: [(1, Mix), (1,)], operands="logits labels", promotes=False,
    tangent=(_class_terms_tangent, None), kernel="losses",
)  # fmt: skip
"""Return the terms of cross-entropy that some of the classes contribute, [2, n], given their logits, [n, k].

The first row is the logarithm of the sum of the exponentials of the logits. The second is the logit of the label, an
index into these k classes, or zero where it is -1: another part has the class. So with the terms of all parts the
cross-entropy is the `logsumexp` of the first minus the sum of the second. The options are the label smoothing s and the
number of all classes C: the second row is then ``(1 - s)`` times the logit plus ``s / C`` times the sum of the logits.
"""


# -- other shapes ----------------------------------------------------------------------------------------------------


class Rows:
    """Logits [n, classes, ...] or [classes] as rows [m, classes], and their labels [n, ...] or [] as [m].

    The dimensions of the rows are joined in their order, but for a sharded one, which comes first.
    """

    def __init__(self, caller: str, logits: Any, labels: Any):
        shape, have = tuple(raw(logits).shape), tuple(raw(labels).shape)
        if not shape or have != shape[:1] * (len(shape) > 1) + shape[2:]:
            raise ShapeError(
                f"{caller}: logits of shape {shape} and labels of shape {have} were given; needed: [n, classes] and "
                f"[n], [n, classes, ...] and [n, ...], or [classes] and []{as_rows(shape, have)}"
            )
        self.order: tuple[int, ...] = (0,)  # of the dimensions of the labels
        self.logits, self.labels = logits, labels
        if len(shape) == 2:
            return
        at = min(len(shape) - 1, 1)  # the dimension of the classes
        layout = logits.layout if logits.__class__ in TENSORS else None
        parts = [] if layout is None else [label.dim for label in layout.labels if type(label) is Shard]
        first = [i for i in range(len(shape)) if i != at and i in parts]
        free = first + [i for i in range(len(shape)) if i != at and i not in parts]
        self.order = tuple(i - (i > at) for i in free)
        self.extents = tuple(have[i] for i in self.order)
        self.logits = reshape(transpose(logits, (*free, at)), (-1, shape[at]))
        self.labels = reshape(transpose(labels, self.order), (-1,))

    def back(self, losses: Any) -> Any:
        """Losses of rows, [m], in the shape of the labels."""
        if self.order == (0,):
            return losses
        if not self.order:
            return reshape(losses, ())
        inverse = tuple(self.order.index(i) for i in range(len(self.order)))
        return transpose(reshape(losses, (-1, *self.extents[1:])), inverse)


def of_probabilities(
    logits: Any, target: Any, weight: Any, ignore_index: int | None, reduction: str, label_smoothing: float
) -> Any:
    """Return ``-sum(weight * target * log_softmax(logits))`` over the classes, for probabilities of each class.

    A mean divides by the number of rows, whatever the weights. Both logits and target have derivatives.
    """
    if ignore_index not in (None, IGNORED):
        raise OptionError(
            f"cross_entropy: ignore_index={ignore_index!r} was given with probabilities, which ignore no row; needed: "
            "labels, or no ignore_index"
        )
    at = min(len(raw(logits).shape) - 1, 1)
    require_one_device("cross_entropy", logits=logits, labels=target, weight=weight)
    if not 0 <= label_smoothing <= 1:
        raise ShapeError(f"label_smoothing={label_smoothing} was given; needed: 0 to 1")
    if label_smoothing:
        target = target * (1.0 - label_smoothing) + label_smoothing / raw(logits).shape[at]
    terms = log_softmax(logits, at) * target
    if weight is not None:
        terms = terms * reshape(weight, (-1,) + (1,) * (len(raw(logits).shape) - 1 - at))
    losses = total(terms, at) * -1.0
    return losses if reduction == "none" else total(losses) if reduction == "sum" else mean(losses)


IGNORED = -100
"""The label of rows without a loss, where a program names none: torch's. No class has it."""
_OBJECTS = np.dtype(object)
_CHECKED = frozenset((np.ndarray, Shaped))
"""The types of labels that are checked for their range, or have no values."""


def _may_ignore(labels: Any) -> bool:
    """Whether a row may have the label IGNORED. Labels on a device stay there, and are not looked at."""
    return type(labels) is not Shaped and (labels.__class__ is not np.ndarray or bool((labels == IGNORED).any()))


def _looked_for(logits: Any, labels: Any, smoothing: float, ignored: int | None) -> tuple[bool, int | None]:
    """Whether to try the operation that ignores no row, and the label to ignore, if there may be one.

    Operations on whole arrays are as fast as the fused kernel where there are few logits; on a device a kernel always
    wins. On the host the operation finds a label IGNORED, as it is out of range; but a replay that has changed
    something before could not go back, and looks for it first, if it can.
    """
    small = smoothing == 0 and logits.size < _MIN_KERNEL_SIZE
    is_plain = small and (type(logits) in _CHECKED or find("losses.cross_entropy", (logits, labels)) is None)
    if ignored is None or (is_plain and ignored == IGNORED and type(labels) in _CHECKED and (
        not listeners or (state.recorder is not None and not state.recorder.should_look_at(labels))
    )):
        return is_plain, ignored
    return (False, ignored) if ignored != IGNORED or decided(_may_ignore, labels) else (is_plain, None)


def _check_indices(indices: Any, ignored: int | None, classes: int) -> None:
    try:
        _check_labels(indices if ignored is None else np.where(indices == ignored, 0, indices), classes)
    except ShapeError:  # it shall name the labels that are not ignored
        _check_labels(indices if ignored is None else indices[indices != ignored], classes)
        raise


def _count_in(labels: Any, ignored: int | None, dtype: Any) -> Any:
    return np.sum(labels != ignored, dtype=np.int64, keepdims=True).astype(dtype).reshape(())


def _sum_of_rows(logits: Any, labels: Any) -> Any:
    if labels.__class__ in TENSORS or logits.__class__ not in TENSORS:
        return cross_entropy_sum(logits, labels)
    return cross_entropy_op(logits, labels).sum()


_PLAIN: dict[str, Callable[[Any, Any], Any]] = {
    "none": cross_entropy_op, "mean": lambda x, labels: mean(cross_entropy_op(x, labels)), "sum": _sum_of_rows,
}  # fmt: skip
"""By reduction: the loss without ignored labels or smoothing."""


def _without_indices(logits: Any, labels: Any, shape: Any, *how: Any) -> Any:
    """The loss for probabilities. `how` has the index to ignore, the reduction and the smoothing."""
    given = raw(labels)
    if getattr(given, "shape", None) == shape and is_inexact(given.dtype):
        return of_probabilities(logits, labels, None, *how)
    raise DtypeError(
        f"labels of dtype {getattr(given, 'dtype', type(given))} were given; needed: integers, or probabilities of "
        f"shape {shape}"
    )


def _by_rows(logits: Any, labels: Any, reduction: str, **how: Any) -> Any:
    """The loss for other shapes than [n, classes] and [n]."""
    rows = Rows("cross_entropy", logits, labels)
    losses = cross_entropy(rows.logits, rows.labels, reduction, **how)
    return rows.back(losses) if reduction == "none" else losses


def _of_indices(logits: Any, labels: Any, reduction: str, ignored: int | None, smoothing: float) -> Any:
    """The loss with ignored labels or smoothing, or by the fused kernel, and its arguments checked."""
    ignored = None if ignored is None else index(ignored)
    if not 0 <= smoothing <= 1:
        raise ShapeError(f"label_smoothing={smoothing} was given; needed: 0 to 1")
    indices, rows = raw(labels), raw(logits)
    if indices.__class__ is np.ndarray:
        checked(_check_indices, indices, ignored, int(rows.shape[1]))
    losses = smoothed_cross_entropy_op(logits, labels, options=(ignored, float(smoothing)))
    return _reduced(losses, reduction, labels, ignored, rows.dtype)


def _reduced(losses: Any, reduction: str, labels: Any, ignored: int | None, dtype: Any) -> Any:
    """The losses of rows, or their sum or mean; the mean is over those that are not ignored."""
    if reduction == "none":
        return losses
    if reduction == "sum":
        return total(losses)
    if ignored is None:
        return mean(losses)
    if losses.__class__ in TENSORS and losses.layout is not None and losses.layout.special:
        raise LayoutError(mean_of_targets(losses, "cross_entropy", labels, ignored))
    if state.recorder is not None:
        return total(losses) / constant_like(recorded(_count_in, raw(labels), ignored, dtype), losses)
    count: Any = np.count_nonzero(raw(labels) != ignored)
    if isinstance(count, int | np.integer):
        return total(losses) / SizeFloat(count, counts="own")
    return total(losses) / constant_like(count.astype(dtype), losses)  # on a device, where it stays


@overload
def cross_entropy(
    logits: Tensor, labels: Any, reduction: str = "none", *, ignore_index: int | None = None,
    label_smoothing: float = 0.0,
) -> Tensor: ...  # fmt: skip
@overload
def cross_entropy(
    logits: Any, labels: Any, reduction: str = "none", *, ignore_index: int | None = None, label_smoothing: float = 0.0
) -> Any: ...
def cross_entropy(
    logits: Any, labels: Any, reduction: str = "none", *, ignore_index: int | None = None, label_smoothing: float = 0.0
) -> Any:
    """Return the cross-entropy ``-log softmax(logits)[row, labels[row]]`` of each row, or its sum or mean.

    Parameters
    ----------
    logits : [n, classes], [n, classes, ...] or [classes]
        The classes may not be sharded.
    labels : [n], [n, ...] or []
        Integers; or probabilities, of the shape of `logits`.
    reduction : "none", "sum" or "mean"
        The mean is over the rows that are not ignored. Where the rows are sharded, the sum and the mean are Partial,
        and the mean divides by the number of rows of all ranks; with `ignore_index` it is refused.
    ignore_index : int, optional
        Rows with this label have loss 0 and gradient 0. -100 costs nothing where no row has it.
    label_smoothing : float
        The fraction of each target that is spread evenly over all classes (Szegedy et al. 2016, section 7).

    Returns
    -------
    [n], [n, ...], [] or one number
        The sum is Partial where the rows are sharded. A mean over no row is NaN, with the gradient 0, as in torch.

    Raises
    ------
    ShapeError
        The shapes do not fit, a label is out of range, or `reduction` or `label_smoothing` is not allowed.
    DtypeError
        The labels are neither integers nor probabilities.
    LayoutError
        The classes are sharded, or the rows are, and a mean over those that are not ignored is asked for.

    Notes
    -----
    Adjoint: ``ct * (softmax(logits) - one_hot(labels))`` row by row. The host does not wait for labels on a GPU: there
    the loss and the gradient of a row whose label is out of range are NaN.

    Examples
    --------
    >>> import numpy
    >>> from autograd import nn
    >>> nn.cross_entropy(numpy.zeros((2, 4)), numpy.array([0, 3]), reduction="sum").round(4)
    np.float64(2.7726)
    """
    try:
        if reduction not in _PLAIN:
            raise ShapeError(f"reduction={reduction!r} was given; needed: 'none', 'sum' or 'mean'")
        array = logits.array if logits.__class__ in TENSORS else logits
        indices = labels.array if labels.__class__ in TENSORS else labels
        if array.dtype.itemsize == 2:
            return _of_16_bits(logits, labels, reduction, ignore_index=ignore_index, label_smoothing=label_smoothing)
        if getattr(indices, "dtype", _OBJECTS).kind not in "iu":
            return _without_indices(logits, labels, array.shape, ignore_index, reduction, label_smoothing)
        if array.__class__ is not indices.__class__:
            require_one_device("cross_entropy", logits=logits, labels=labels)
        if len(array.shape) != 2 or indices.shape != array.shape[:1]:
            return _by_rows(logits, labels, reduction, ignore_index=ignore_index, label_smoothing=label_smoothing)
        if logits.__class__ in TENSORS and logits.layout is not None and logits.layout.special:
            _refuse_parts_of_classes(logits)
        is_plain, ignore_index = _looked_for(array, indices, label_smoothing, ignore_index)
        if is_plain:
            try:
                return _PLAIN[reduction](logits, labels)
            except ShapeError:  # IGNORED is out of range: the check of the labels finds it without another pass
                if ignore_index is None or not decided(_may_ignore, indices):
                    raise
        return _of_indices(logits, labels, reduction, ignore_index, label_smoothing)
    except UNTYPED as error:  # as `typed_errors` does, which costs a call
        if isinstance(error, RingtapeError):
            raise
        raise refused(error, "cross_entropy", (logits, labels, reduction, ignore_index, label_smoothing)) from error


_of_16_bits = composite(cross_entropy)


__all__ = ["cross_entropy", "one_hot"]
