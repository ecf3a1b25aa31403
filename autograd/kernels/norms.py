"""Layer norm and RMS norm over the last dimension, in blocks of rows.

Row means are products with a vector, and sums of squares are ``vecdot``. Backward needs the operands and two numbers
per row.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from . import Kernel, compiled
from .blocks import blocks, rows

_TINY = {4: 2.0**-9.5, 8: 2.0**-24}
"""By the bytes of a number: below this share of its mean, the deviation of a row may be the rounding of the mean."""


def _correct(x: Any, centred: Any, mean: Any, variance: Any, share: Any, tiny: float) -> None:
    """Take the rounding of the means into account where deviations are tiny; those of constant rows become 0."""
    at = np.flatnonzero(np.sqrt(variance) < np.abs(mean) * tiny)
    mean[at] += centred[at].dot(share)
    centred[at] = x[at] - mean[at, None]
    variance[at] = np.vecdot(centred[at], centred[at]) * share[0]


def _forward(xs: tuple[Any, ...], options: tuple[Any, ...], keep: bool, is_centred: bool = True) -> tuple[Any, Any]:
    """The normalized rows, and (means, scales); the means are None where the rows are not centred, in RMS norm."""
    weight: Any = xs[1] if len(xs) > 1 else None
    bias: Any = xs[2] if len(xs) > 2 else None
    x, (eps,) = rows(xs[0]), options
    n, width = x.shape
    y = np.empty(x.shape, x.dtype, like=x)
    means: Any = None
    share: Any = None
    scales = np.empty(n, x.dtype, like=x)
    if is_centred:
        means, share = np.empty_like(scales), np.full(width, 1 / max(width, 1), x.dtype, like=x)
    fits = bias is not None and weight.shape == bias.shape == x.shape[1:]
    if fits and (loop := compiled.fitting("layer_norm", x, weight, bias)) is not None:
        loop(x, weight, bias, y, means, scales, *map(x.dtype.type, (1 / width, eps, _TINY[x.itemsize])))
        return y.reshape(xs[0].shape), (means, scales) if keep else None
    tiny = _TINY[x.itemsize]
    for at in blocks(n, width * x.itemsize):
        part, out, scale = x[at], y[at], scales[at]
        if means is not None:
            mean = means[at]
            np.dot(part, share, out=mean)
            np.subtract(part, mean[:, None], out=out)
        centred = part if means is None else out
        np.vecdot(centred, centred, out=scale)
        scale *= 1 / max(width, 1)
        if means is not None and not mean.dot(mean) * (tiny * tiny) < np.minimum.reduce(scale):
            # a question of few calls, whose exact form is asked for each row
            _correct(part, out, mean, scale, share, tiny)
        scale += eps
        np.sqrt(scale, out=scale)
        np.reciprocal(scale, out=scale)
        np.multiply(centred, scale[:, None], out=out)
        if weight is not None:
            out *= weight
        if bias is not None:
            out += bias
    return y.reshape(xs[0].shape), (means, scales) if keep else None


def _backward(
    ct: Any, kept: Any, xs: tuple[Any, ...], options: tuple[Any, ...], wanted: Sequence[bool], last: bool
) -> Sequence[Any]:
    """``dx = (g - mean(g) - xh mean(g xh)) / sigma`` with ``g = ct w``, without ``mean(g)`` where rows are not centred.

    The means are products with the vector w.
    """
    x, cts = rows(xs[0]), rows(ct)
    means, scales = kept
    n, width = x.shape
    weight: Any = xs[1] if len(xs) > 1 else None
    share = np.full(width, 1 / max(width, 1), x.dtype, like=x) if weight is None else weight * (1 / max(width, 1))
    dx: Any = np.empty(x.shape, x.dtype, like=x) if wanted[0] else None
    dw = np.zeros(width, x.dtype, like=x) if weight is not None and wanted[1] else None
    db = np.zeros(width, x.dtype, like=x) if len(xs) > 2 and wanted[2] else None
    fits = dx is not None and len(xs) > 2 and weight.shape == x.shape[1:] and cts.shape == x.shape
    if fits and (loop := compiled.fitting("layer_norm_backward", x, cts, weight)) is not None:
        sums = np.zeros((2, width), x.dtype, like=x)
        loop(cts, x, weight, means, scales, dx, *sums, x.dtype.type(1 / width))
        dw, db = (total if is_wanted else None for total, is_wanted in zip(sums, wanted[1:], strict=True))
        return dx.reshape(xs[0].shape), dw, db
    whole = list(blocks(n, width * x.itemsize))
    most = whole[0].stop if whole else 0
    scratch = np.empty((2, most, width), x.dtype, like=x)
    ones = np.ones(most, x.dtype, like=x)
    for at in whole:
        c, scale = cts[at], scales[at][:, None]
        normed, product = scratch[:, : len(c)]
        if means is None:
            np.multiply(x[at], scale, out=normed)
        else:
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
            if means is not None:
                normed += c.dot(share)[:, None]
            if weight is None:
                np.subtract(c, normed, out=out)
            else:
                np.multiply(c, weight, out=out)
                out -= normed
            out *= scale
    return (None if dx is None else dx.reshape(xs[0].shape), dw, db)[: len(xs)]


layer_norm_kernel = normalize_kernel = Kernel(_forward, _backward)
rms_norm_kernel = Kernel(partial(_forward, is_centred=False), _backward)
