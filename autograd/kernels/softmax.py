"""Softmax and log-softmax in blocks of rows, and the exponentials for attention and cross-entropy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from . import Kernel
from .blocks import blocks

SAFE = 60.0
"""exp of numbers between -SAFE and SAFE, and sums of them, do not overflow or underflow in float32."""


def exponentials(x: Any, out: Any) -> Any:
    """Write ``exp(x - shift)`` to `out` and return the shift of each row, [..., 1]; None where it is zero.

    The maximum of each row takes longer than the exponential, because NumPy has no vector code for it. The extremes of
    the whole block are cheap, and usually show that no shift is needed. A row of -inf gives zeros.
    """
    if not x.size:
        return None
    if x.min() >= -SAFE and x.max() <= SAFE:
        np.exp(x, out=out)
        return None
    tops = x.max(axis=-1, keepdims=True)
    tops[np.isneginf(tops)] = 0
    np.subtract(x, tops, out=out)
    np.exp(out, out=out)
    return tops


def _as_rows(x: Any, axis: int) -> tuple[Any, tuple[int, ...]]:
    """`x` as a matrix whose rows run along `axis`, and the shape before it was flattened."""
    moved = np.moveaxis(x, axis, -1)
    moved = moved if moved.flags.c_contiguous else moved.copy()
    return moved.reshape(math.prod(moved.shape[:-1]), x.shape[axis]), moved.shape


def _back(y: Any, shape: tuple[int, ...], axis: int) -> Any:
    return np.moveaxis(y.reshape(shape), -1, axis)


def _softmax(xs: tuple[Any, ...], options: tuple[Any, ...], keep: bool) -> tuple[Any, Any]:
    (axis,) = options
    x, shape = _as_rows(xs[0], axis)
    y = np.empty(x.shape, x.dtype, like=x)
    ones = np.ones(x.shape[1], x.dtype, like=x)
    for at in blocks(len(x), x.shape[1] * x.itemsize):
        out = y[at]
        exponentials(x[at], out)
        out /= out.dot(ones)[:, None]
    return _back(y, shape, axis), y if keep else None


def _softmax_backward(
    ct: Any, y: Any, xs: Any, options: tuple[Any, ...], wanted: Sequence[bool], last: bool
) -> Sequence[Any]:
    (axis,) = options
    cts, shape = _as_rows(ct, axis)
    dx = np.empty(y.shape, y.dtype, like=y)
    for at in blocks(len(y), y.shape[1] * y.itemsize):
        out = dx[at]
        np.subtract(cts[at], np.vecdot(cts[at], y[at])[:, None], out=out)
        out *= y[at]
    return (_back(dx, shape, axis),)


def _log_softmax(xs: tuple[Any, ...], options: tuple[Any, ...], keep: bool) -> tuple[Any, Any]:
    (axis,) = options
    x, shape = _as_rows(xs[0], axis)
    y = np.empty(x.shape, x.dtype, like=x)
    ones = np.ones(x.shape[1], x.dtype, like=x)
    with np.errstate(divide="ignore"):
        for at in blocks(len(x), x.shape[1] * x.itemsize):
            out = y[at]
            tops = exponentials(x[at], out)
            sums = np.log(out.dot(ones))[:, None]
            np.subtract(x[at], sums if tops is None else sums + tops, out=out)
    return _back(y, shape, axis), y if keep else None


def _log_softmax_backward(
    ct: Any, y: Any, xs: Any, options: tuple[Any, ...], wanted: Sequence[bool], last: bool
) -> Sequence[Any]:
    (axis,) = options
    cts, shape = _as_rows(ct, axis)
    dx = np.empty(y.shape, y.dtype, like=y)
    ones = np.ones(y.shape[1], y.dtype, like=y)
    for at in blocks(len(y), y.shape[1] * y.itemsize):
        out = dx[at]
        np.exp(y[at], out=out)
        out *= cts[at].dot(ones)[:, None]
        np.subtract(cts[at], out, out=out)
    return (_back(dx, shape, axis),)


softmax_kernel = Kernel(_softmax, _softmax_backward)
log_softmax_kernel = Kernel(_log_softmax, _log_softmax_backward)
