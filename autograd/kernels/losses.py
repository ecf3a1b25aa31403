"""Cross-entropy of many classes in blocks of rows: neither probabilities nor exponentials of all rows ever exist.

Forward keeps the logarithm of each row's sum; backward takes the exponential again, straight into the gradient, which
is cheaper than to keep 32 MiB of them and read them back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from . import Kernel
from .blocks import blocks
from .softmax import SAFE, exponentials

BLOCK_BYTES = 1 << 19


def _cross_entropy(xs: tuple[Any, ...], options: tuple[Any, ...], keep: bool) -> tuple[Any, Any]:
    logits, labels = xs
    ignored, smoothing = options
    n, classes = logits.shape
    logs = np.empty(n, logits.dtype)
    ones = np.ones(classes, logits.dtype)
    scratch: Any = None
    shifted = False
    picked = logits[np.arange(n), np.where(labels == ignored, 0, labels)] if ignored is not None else (
        logits[np.arange(n), labels])
    losses = picked * (smoothing - 1.0)
    for at in blocks(n, classes * logits.itemsize, BLOCK_BYTES):
        x = logits[at]
        scratch = np.empty(x.shape, x.dtype) if scratch is None else scratch[: len(x)]
        tops = exponentials(x, scratch)
        out = logs[at]
        np.dot(scratch, ones, out=out)
        np.log(out, out=out)
        if tops is not None:
            out += tops[:, 0]
            shifted = True
        if smoothing:
            losses[at] -= x.dot(ones) * (smoothing / classes)
    losses += logs
    if ignored is not None:
        losses[labels == ignored] = 0
    return losses, (logs, shifted) if keep else None


def _cross_entropy_backward(
    ct: Any, kept: Any, xs: tuple[Any, ...], options: tuple[Any, ...], wanted: Sequence[bool]
) -> Sequence[Any]:
    """``ct (softmax - (1 - smoothing) one_hot - smoothing / classes)``; zero in rows that are ignored."""
    logits, labels = xs
    ignored, smoothing = options
    logs, shifted = kept
    n, classes = logits.shape
    if ignored is not None:
        ct = np.where(labels == ignored, np.zeros((), ct.dtype), ct)
        labels = np.where(labels == ignored, 0, labels)
    dx = np.empty(logits.shape, logits.dtype)
    plain = not shifted and bool((np.abs(logs) <= SAFE).all())
    factor = ct * np.exp(-logs) if plain else ct
    for at in blocks(n, classes * logits.itemsize, BLOCK_BYTES):
        out = dx[at]
        if plain:
            np.exp(logits[at], out=out)
        else:
            np.subtract(logits[at], logs[at][:, None], out=out)
            np.exp(out, out=out)
        out *= factor[at][:, None]
        if smoothing:
            out -= (ct[at] * (smoothing / classes))[:, None]
        out[np.arange(len(out)), labels[at]] -= ct[at] * (1.0 - smoothing)
    return dx, None


cross_entropy_kernel = Kernel(_cross_entropy, _cross_entropy_backward)
