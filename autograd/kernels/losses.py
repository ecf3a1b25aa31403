"""Cross-entropy of many classes in blocks of rows.

The exponentials are kept for backward, and the last backward overwrites them with the gradient. So only one array of
the size of the logits is allocated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from . import Kernel
from .blocks import blocks
from .softmax import exponentials

BLOCK_BYTES = 1 << 20


def _summed(logits: Any, ones: Any, exps: Any, sums: Any) -> Iterator[tuple[slice, Any, Any]]:
    """Write the exponentials of the logits, unless `exps` is None, and the sums of their rows, in blocks of rows.

    Yield the rows of each block, their logits, and the largest ones if these were subtracted before.
    """
    scratch: Any = None
    for at in blocks(len(logits), logits.shape[1] * logits.itemsize, BLOCK_BYTES):
        x = logits[at]
        if exps is None:
            scratch = np.empty(x.shape, x.dtype, like=x) if scratch is None else scratch[: len(x)]
        e = scratch if exps is None else exps[at]
        tops = exponentials(x, e)
        np.dot(e, ones, out=sums[at])
        yield at, x, tops


def _cross_entropy(xs: tuple[Any, ...], options: tuple[Any, ...], keep: bool) -> tuple[Any, Any]:
    logits, labels = xs
    ignored, smoothing = options
    n, classes = logits.shape
    sums = np.empty(n, logits.dtype, like=logits)
    exps: Any = np.empty((n, classes), logits.dtype, like=logits) if keep else None
    ones = np.ones(classes, logits.dtype, like=logits)
    is_ignored = None if ignored is None else labels == ignored
    losses = logits[np.arange(n), labels if is_ignored is None else np.where(is_ignored, 0, labels)] * (smoothing - 1.0)
    for at, x, tops in _summed(logits, ones, exps, sums):
        losses[at] += np.log(sums[at])
        if tops is not None:
            losses[at] += tops[:, 0]
        if smoothing:
            losses[at] -= x.dot(ones) * (smoothing / classes)
    if is_ignored is not None:
        losses[is_ignored] = 0
    return losses, (exps, sums) if keep else None


def _cross_entropy_backward(
    ct: Any, kept: Any, xs: tuple[Any, ...], options: tuple[Any, ...], wanted: Sequence[bool], last: bool
) -> Sequence[Any]:
    """``ct (softmax - (1 - smoothing) one_hot - smoothing / classes)``; zero in ignored rows."""
    labels = xs[1]
    ignored, smoothing = options
    exps, sums = kept
    dx = exps if last else np.empty(exps.shape, exps.dtype, like=exps)
    if ignored is not None:
        is_ignored = labels == ignored
        ct, labels = np.where(is_ignored, np.zeros((), ct.dtype), ct), np.where(is_ignored, 0, labels)
    n, classes = exps.shape
    factor = ct / sums
    for at in blocks(n, classes * dx.itemsize, BLOCK_BYTES):
        out = dx[at]
        np.multiply(exps[at], factor[at][:, None], out=out)
        if smoothing:
            out -= (ct[at] * (smoothing / classes))[:, None]
    dx[np.arange(n), labels] -= ct * (1.0 - smoothing)
    return dx, None


cross_entropy_kernel = Kernel(_cross_entropy, _cross_entropy_backward)


def _class_terms(xs: tuple[Any, ...], options: tuple[Any, ...], keep: bool) -> tuple[Any, Any]:
    logits, labels = xs
    smoothing, classes = options
    n, own = logits.shape
    terms, sums = np.empty((2, n), logits.dtype, like=logits), np.empty(n, logits.dtype, like=logits)
    exps: Any = np.empty((n, own), logits.dtype, like=logits) if keep else None
    ones = np.ones(own, logits.dtype, like=logits)
    logs, linear = terms
    linear[...] = 0
    if own:
        is_own, columns = _columns(labels)
        np.multiply(logits[np.arange(n), columns], 1.0 - smoothing, out=linear, where=is_own)
    for at, x, tops in _summed(logits, ones, exps, sums):
        with np.errstate(divide="ignore"):  # a part without classes has the logarithm of zero
            np.log(sums[at], out=logs[at])
        if tops is not None:
            logs[at] += tops[:, 0]
        if smoothing:
            linear[at] += x.dot(ones) * (smoothing / classes)
    return terms, (exps, sums) if keep else None


def _columns(labels: Any) -> tuple[Any, Any]:
    """Where a row's class is one of the part, and its column, 0 elsewhere: no shape depends on values."""
    is_own = labels >= 0
    return is_own, np.where(is_own, labels, 0)


def _class_terms_backward(
    ct: Any, kept: Any, xs: tuple[Any, ...], options: tuple[Any, ...], wanted: Sequence[bool], last: bool
) -> Sequence[Any]:
    """``ct_0 softmax + ct_1 ((1 - smoothing) one_hot + smoothing / classes)``."""
    labels = xs[1]
    smoothing, classes = options
    exps, sums = kept
    dx = exps if last else np.empty(exps.shape, exps.dtype, like=exps)
    factor = np.divide(ct[0], sums, out=np.zeros_like(sums), where=sums > 0)
    for at in blocks(len(dx), dx.shape[1] * dx.itemsize, BLOCK_BYTES):
        out = dx[at]
        np.multiply(exps[at], factor[at][:, None], out=out)
        if smoothing:
            out += (ct[1][at] * (smoothing / classes))[:, None]
    if dx.shape[1]:
        is_own, columns = _columns(labels)
        dx[np.arange(len(dx)), columns] += np.where(is_own, ct[1] * (1.0 - smoothing), np.zeros((), dx.dtype))
    return dx, None


class_terms_kernel = Kernel(_class_terms, _class_terms_backward)
