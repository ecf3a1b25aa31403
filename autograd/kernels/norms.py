"""Layer norm and RMS norm over the last dimension, in blocks of rows.

Row means are products with a vector, and sums of squares are ``vecdot``. Backward needs the operands and two numbers
per row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from . import Kernel, compiled
from .blocks import blocks, rows


def _ones(n: int, x: Any) -> Any:
    return np.ones(n, x.dtype, like=x)


_TINY = {4: 2.0**-9.5, 8: 2.0**-24}
"""By the bytes of a number: below this share of its mean, the deviation of a row may be the rounding of the mean."""


def _correct(x: Any, centred: Any, mean: Any, variance: Any, share: Any, tiny: float) -> None:
    """Take the rounding of the means into account where deviations are tiny; those of constant rows become 0."""
    at = np.flatnonzero(np.sqrt(variance) < np.abs(mean) * tiny)
    mean[at] += centred[at].dot(share)
    centred[at] = x[at] - mean[at, None]
    variance[at] = np.vecdot(centred[at], centred[at]) * share[0]


def _layer_norm(xs: tuple[Any, ...], options: tuple[Any, ...], keep: bool) -> tuple[Any, Any]:
    weight, bias = xs[1:] if len(xs) > 1 else (None, None)
    x, (eps,) = rows(xs[0]), options
    n, width = x.shape
    y = np.empty(x.shape, x.dtype, like=x)
    means, scales = np.empty((2, n), x.dtype, like=x)
    number = x.dtype.type
    fits = weight is not None and weight.shape == bias.shape == x.shape[1:]
    if fits and (loop := compiled.fitting("layer_norm", x, weight, bias)) is not None:
        loop(x, weight, bias, y, means, scales, number(1 / width), number(eps), number(_TINY[x.itemsize]))
        return y.reshape(xs[0].shape), (means, scales) if keep else None
    least, share, tiny = np.minimum.reduce, np.full(width, 1 / max(width, 1), x.dtype, like=x), _TINY[x.itemsize]
    for at in blocks(n, width * x.itemsize):
        part, out, mean, scale = x[at], y[at], means[at], scales[at]
        np.dot(part, share, out=mean)
        np.subtract(part, mean[:, None], out=out)
        np.vecdot(out, out, out=scale)
        scale *= 1 / max(width, 1)
        if not mean.dot(mean) * (tiny * tiny) < least(scale):  # few calls; the exact question is asked for each row
            _correct(part, out, mean, scale, share, tiny)
        scale += eps
        np.sqrt(scale, out=scale)
        np.reciprocal(scale, out=scale)
        out *= scale[:, None]
        if weight is not None:
            out *= weight
            out += bias
    return y.reshape(xs[0].shape), (means, scales) if keep else None


def _by_loop(cts: Any, x: Any, weight: Any, means: Any, scales: Any, dx: Any) -> Any:
    """Compute dx by a compiled loop, and return the sums for weight and bias; None where no loop fits."""
    if weight.shape != x.shape[1:] or cts.shape != x.shape:
        return None
    loop = compiled.fitting("layer_norm_backward", x, cts, weight)
    if loop is None:
        return None
    width = x.shape[1]
    sums = np.zeros((2, width), x.dtype, like=x)
    loop(cts, x, weight, means, scales, dx, *sums, x.dtype.type(1 / width))
    return sums


def _layer_norm_backward(
    ct: Any, kept: Any, xs: tuple[Any, ...], options: tuple[Any, ...], wanted: Sequence[bool], last: bool
) -> Sequence[Any]:
    """``dx = (g - mean(g) - xh mean(g xh)) / sigma`` with ``g = ct w``; the means are products with the vector w."""
    x, cts = rows(xs[0]), rows(ct)
    means, scales = kept
    n, width = x.shape
    plain = len(xs) == 1
    weight: Any = None if plain else xs[1]
    share = np.full(width, 1 / max(width, 1), x.dtype, like=x) if plain else weight * (1 / max(width, 1))
    dx = np.empty(x.shape, x.dtype, like=x) if wanted[0] else None
    dw = None if plain or not wanted[1] else np.zeros(width, x.dtype, like=x)
    db = None if plain or not wanted[2] else np.zeros(width, x.dtype, like=x)
    if dx is not None and not plain and (sums := _by_loop(cts, x, weight, means, scales, dx)) is not None:
        dw, db = (total if is_wanted else None for total, is_wanted in zip(sums, wanted[1:], strict=True))
        return dx.reshape(xs[0].shape), dw, db
    whole = list(blocks(n, width * x.itemsize))
    most = whole[0].stop if whole else 0
    scratch = np.empty((2, most, width), x.dtype, like=x)
    ones = _ones(most, x)
    for at in whole:
        c, scale = cts[at], scales[at][:, None]
        normed, product = scratch[:, : len(c)]
        np.subtract(x[at], means[at][:, None], out=normed)
        normed *= scale
        np.multiply(c, normed, out=product)
        if dw is not None:
            dw += ones[: len(c)].dot(product)
        if db is not None:
            db += ones[: len(c)].dot(c)
        if dx is not None:
            out = dx[at]
            normed *= product.dot(share)[:, None]
            normed += c.dot(share)[:, None]
            if plain:
                np.subtract(c, normed, out=out)
            else:
                np.multiply(c, weight, out=out)
                out -= normed
            out *= scale
    return (None if dx is None else dx.reshape(xs[0].shape), dw, db)[: len(xs)]


def _rms_norm(xs: tuple[Any, ...], options: tuple[Any, ...], keep: bool) -> tuple[Any, Any]:
    x, weight, (eps,) = rows(xs[0]), xs[1], options
    n, width = x.shape
    y = np.empty(x.shape, x.dtype, like=x)
    scales = np.empty(n, x.dtype, like=x)
    for at in blocks(n, width * x.itemsize):
        part, out, scale = x[at], y[at], scales[at]
        np.vecdot(part, part, out=scale)
        scale *= 1 / max(width, 1)
        scale += eps
        np.sqrt(scale, out=scale)
        np.reciprocal(scale, out=scale)
        np.multiply(part, scale[:, None], out=out)
        out *= weight
    return y.reshape(xs[0].shape), scales if keep else None


def _rms_norm_backward(
    ct: Any, kept: Any, xs: tuple[Any, ...], options: tuple[Any, ...], wanted: Sequence[bool], last: bool
) -> Sequence[Any]:
    """``dx = (g - xh mean(g xh)) / rms`` with ``g = ct w`` and ``xh = x / rms``."""
    x, weight, cts = rows(xs[0]), xs[1], rows(ct)
    n, width = x.shape
    share = weight * (1 / max(width, 1))
    dx = np.empty(x.shape, x.dtype, like=x) if wanted[0] else None
    dw = np.zeros(width, x.dtype, like=x) if wanted[1] else None
    whole = list(blocks(n, width * x.itemsize))
    most = whole[0].stop if whole else 0
    scratch = np.empty((2, most, width), x.dtype, like=x)
    ones = _ones(most, x)
    for at in whole:
        c, scale = cts[at], kept[at][:, None]
        normed, product = scratch[:, : len(c)]
        np.multiply(x[at], scale, out=normed)
        np.multiply(c, normed, out=product)
        if dw is not None:
            dw += ones[: len(c)].dot(product)
        if dx is not None:
            out = dx[at]
            normed *= product.dot(share)[:, None]
            np.multiply(c, weight, out=out)
            out -= normed
            out *= scale
    return None if dx is None else dx.reshape(xs[0].shape), dw


layer_norm_kernel = normalize_kernel = Kernel(_layer_norm, _layer_norm_backward)
rms_norm_kernel = Kernel(_rms_norm, _rms_norm_backward)
