"""Cross-entropy of many classes, and its terms for a part of them.

Two numbers per row are kept for backward, which computes the exponentials again. Labels stay on the device: the loss of
a row whose label is out of range is NaN, and so is its gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import Kernel
from .program import TYPES, launch_known, program, type_name, wide
from .rows import contiguous, made_of, matrix, streamed_rows

PROGRAM = program(
    "losses", tuple(f"{kernel}<{name}>" for kernel in ("class_terms", "class_terms_backward") for name in TYPES),
    ("rows.cuh", "losses.cu"),
)  # fmt: skip


def _labels(labels: Any) -> tuple[Any, bool]:
    """The labels as a contiguous array of int32 or int64, and whether they are int64."""
    if labels.dtype not in (np.int32, np.int64):
        labels = labels.astype(np.int64)
    return contiguous(labels), bool(labels.dtype == np.int64)


Numbers = tuple[int | None, float, int]
"""The class that is ignored, the smoothing, and the number of classes."""


def _as_taken(numbers: Numbers) -> tuple[Any, ...]:
    """Numbers as the kernels take them."""
    ignored, smoothing, classes = numbers
    return (
        np.int32(ignored is not None), np.int64(0 if ignored is None else ignored), np.float64(smoothing),
        np.float64(smoothing / max(classes, 1)),
    )  # fmt: skip


def _forward(
    x: Any, labels: Any, out: Any, linear: Any, numbers: Numbers, keep: bool
) -> tuple[Any, Any] | None:
    labels, is_long = _labels(labels)
    stats = np.empty_like(x, wide(x.dtype), shape=(2, len(x))) if keep else None
    tops, sums = (None, None) if stats is None else (stats[0], stats[1])
    launch_known(
        PROGRAM, f"class_terms<{type_name(x.dtype)}>", (x.shape, is_long, numbers),
        lambda: made_of(streamed_rows(x), 6, x, np.int32(is_long), *_as_taken(numbers)),
        x, labels, out, linear, tops, sums,
    )  # fmt: skip
    return None if stats is None else (stats[0], stats[1])


def _backward(ct: Any, linear_ct: Any, x: Any, labels: Any, kept: Any, numbers: Numbers) -> Any:
    dx = np.empty_like(x)
    if x.size:
        labels, is_long = _labels(labels)
        launch_known(
            PROGRAM, f"class_terms_backward<{type_name(x.dtype)}>", (x.shape, is_long, numbers),
            lambda: made_of(streamed_rows(x), 7, x, np.int32(is_long), *_as_taken(numbers)),
            ct, linear_ct, x, labels, *kept, dx,
        )  # fmt: skip
    return dx


def _cross_entropy(xs: tuple[Any, ...], options: tuple[Any, ...], keep: bool) -> tuple[Any, Any]:
    x, (ignored, smoothing) = matrix(xs[0]), options
    losses = np.empty_like(x, shape=(len(x),))
    return losses, _forward(x, xs[1], losses, None, (ignored, smoothing, x.shape[1]), keep)


def _cross_entropy_backward(
    ct: Any, kept: Any, xs: tuple[Any, ...], options: tuple[Any, ...], wanted: Sequence[bool], last: bool
) -> Sequence[Any]:
    x, (ignored, smoothing) = matrix(xs[0]), options
    return _backward(contiguous(ct), None, x, xs[1], kept, (ignored, smoothing, x.shape[1])), None


def _class_terms(xs: tuple[Any, ...], options: tuple[Any, ...], keep: bool) -> tuple[Any, Any]:
    x, (smoothing, classes) = matrix(xs[0]), options
    terms = np.empty_like(x, shape=(2, len(x)))
    return terms, _forward(x, xs[1], terms[0], terms[1], (None, smoothing, classes), keep)


def _class_terms_backward(
    ct: Any, kept: Any, xs: tuple[Any, ...], options: tuple[Any, ...], wanted: Sequence[bool], last: bool
) -> Sequence[Any]:
    x, (smoothing, classes) = matrix(xs[0]), options
    return _backward(contiguous(ct[0]), contiguous(ct[1]), x, xs[1], kept, (None, smoothing, classes)), None


cross_entropy_kernel = Kernel(_cross_entropy, _cross_entropy_backward)
class_terms_kernel = Kernel(_class_terms, _class_terms_backward)
