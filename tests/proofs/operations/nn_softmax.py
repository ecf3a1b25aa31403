"""Cases of softmax, logsumexp and cross-entropy."""

from __future__ import annotations

from typing import Any

import numpy

from autograd import ops
from autograd.engine.leaves import tensor
from autograd.engine.primitive import registry
from autograd.engine.tensor import Tensor

from .base import Array, case, normal, strided


def numpy_softmax(x: Array, axis: int = -1) -> Array:
    e = numpy.exp(x)
    return e / e.sum(axis=axis, keepdims=True)


for _shape, _axis in (((3,), -1), ((2, 3), -1), ((2, 3), 0), ((2, 3, 2), 1), ((0, 3), 1), ((2, 1), 1)):
    case("softmax", f"{_shape} axis={_axis}", lambda x, a=_axis: ops.softmax(x, a),
         lambda x, a=_axis: numpy_softmax(x, a), normal(*_shape))  # fmt: skip
    case("logsumexp", f"{_shape} axis={_axis}", lambda x, a=_axis: ops.logsumexp(x, a),
         lambda x, a=_axis: numpy.log(numpy.exp(x).sum(axis=a)), normal(*_shape))  # fmt: skip
    case("log_softmax", f"{_shape} axis={_axis}", lambda x, a=_axis: ops.log_softmax(x, a),
         lambda x, a=_axis: numpy.log(numpy_softmax(x, a)), normal(*_shape))  # fmt: skip
case("log_softmax", "strided", ops.log_softmax, lambda x: numpy.log(numpy_softmax(x)), strided(normal(2, 3)))


def summed_cross_entropy(x: Any, labels: Array) -> Any:
    return ops.cross_entropy(x, tensor(labels) if isinstance(x, Tensor) else labels, reduction="sum")


def numpy_cross_entropy(x: Array, labels: Array) -> Array:
    return -numpy.log(numpy_softmax(x))[numpy.arange(len(labels)), labels]


for _rows, _given in (((3, 4), [0, 3, 3]), ((1, 1), [0]), ((0, 3), []), ((2, 2), [1, 1])):
    _labels = numpy.array(_given, numpy.int64)
    case("cross_entropy", f"{_rows}", lambda x, t=_labels: ops.cross_entropy(x, t),
         lambda x, t=_labels: numpy_cross_entropy(x, t), normal(*_rows))  # fmt: skip
    case("linear", f"{_rows}", ops.linear, lambda x, w, b: x @ w + b, normal(*_rows), normal(_rows[1], 3), normal(3))
    case("cross_entropy_sum", f"{_rows}", lambda x, t=_labels: summed_cross_entropy(x, t),
         lambda x, t=_labels: numpy_cross_entropy(x, t).sum(), normal(*_rows))  # fmt: skip
case("cross_entropy_sum", "strided", lambda x: summed_cross_entropy(x, numpy.array([1, 0])),
     lambda x: numpy_cross_entropy(x, numpy.array([1, 0])).sum(), strided(normal(2, 3)))  # fmt: skip
case("cross_entropy", "strided", lambda x: ops.cross_entropy(x, numpy.array([1, 0])),
     lambda x: numpy_cross_entropy(x, numpy.array([1, 0])), strided(normal(2, 3)))  # fmt: skip


def numpy_smoothed(x: Array, labels: Array, ignored: int | None, smoothing: float) -> Array:
    logs = numpy.log(numpy_softmax(x))
    target = (labels[:, None] == numpy.arange(x.shape[1])) * (1 - smoothing) + smoothing / x.shape[1]
    return (-(logs * target).sum(1) * (1 if ignored is None else labels != ignored)).astype(x.dtype)


for _ignored, _smoothing in ((None, 0.1), (-100, 0.0), (2, 0.3)):
    _labels = numpy.array([0, 2, 1] if _ignored is None else [0, _ignored, 1])
    case("smoothed_cross_entropy", f"ignoring {_ignored}, {_smoothing}",
         lambda x, t=_labels, i=_ignored, s=_smoothing: ops.cross_entropy(x, t, ignore_index=i, label_smoothing=s),
         lambda x, t=_labels, i=_ignored, s=_smoothing: numpy_smoothed(x, t, i, s), normal(3, 4))  # fmt: skip
    case("smoothed_cross_entropy", f"mean, ignoring {_ignored}, {_smoothing}",
         lambda x, t=_labels, i=_ignored, s=_smoothing: ops.cross_entropy(
             x, t, "mean", ignore_index=i, label_smoothing=s),
         lambda x, t=_labels, i=_ignored, s=_smoothing: numpy_smoothed(x, t, i, s).sum() / int(numpy.sum(t != i))
         if i is not None else numpy_smoothed(x, t, i, s).mean(), strided(normal(3, 4)))  # fmt: skip


def class_terms(x: Any, labels: Array, smoothing: float) -> Any:
    return registry["class_terms"](x, labels, options=(smoothing, 7))


def numpy_class_terms(x: Array, labels: Array, smoothing: float) -> Array:
    target = (labels[:, None] == numpy.arange(x.shape[1])) * (1 - smoothing) + smoothing / 7
    return numpy.stack([numpy.log(numpy.exp(x).sum(1)), (x * target).sum(1)]).astype(x.dtype)


for _smoothing in (0.0, 0.2):
    for _rows, _given in (((3, 4), [0, -1, 3]), ((2, 1), [-1, 0]), ((0, 3), [])):
        _labels = numpy.array(_given, numpy.int64)
        case("class_terms", f"{_rows}, {_smoothing}", lambda x, t=_labels, s=_smoothing: class_terms(x, t, s),
             lambda x, t=_labels, s=_smoothing: numpy_class_terms(x, t, s), normal(*_rows))  # fmt: skip
case("class_terms", "strided", lambda x: class_terms(x, numpy.array([1, -1]), 0.0),
     lambda x: numpy_class_terms(x, numpy.array([1, -1]), 0.0), strided(normal(2, 3)))  # fmt: skip
case("cross_entropy", "mean", lambda x: ops.cross_entropy(x, numpy.array([1, 0]), "mean"),
     lambda x: numpy_cross_entropy(x, numpy.array([1, 0])).mean(), normal(2, 3))  # fmt: skip
