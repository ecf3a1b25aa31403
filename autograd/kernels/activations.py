"""Activations. Forward computes the value and the derivative in one pass, so that backward is one product."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from . import Kernel, compiled
from .blocks import blocks, flat
from .normal import normal_cdf

BLOCK_BYTES = 1 << 16
_SLOPE = math.sqrt(2 / math.pi)
_CUBIC = 0.044715
_DENSITY = 1 / math.sqrt(2 * math.pi)


@cache  # of dtypes and the numbers of this file; without it each block takes 0.9 us more, of 20
def _constants(dtype: Any, *values: float) -> list[Any]:
    """Numbers as arrays without dimensions. With Python numbers each call would take a microsecond more."""
    return [np.array(value, dtype) for value in values]


def _gelu_tanh(x: Any, y: Any, d: Any, a: Any, b: Any) -> None:
    """``y = x h``, ``h = (1 + tanh(u)) / 2 = 1 / (1 + exp(-2u))``; ``d = h + 2 y (1 - h) du/dx``.

    ``u = slope (x + cubic x^3)`` is computed by products, because NumPy's x**3 is an order of magnitude slower. NumPy's
    exp is twice as fast as its tanh.
    """
    one, linear, cube, slope, square = _constants(
        x.dtype, 1, -2 * _SLOPE, -2 * _SLOPE * _CUBIC, 2 * _SLOPE, 6 * _SLOPE * _CUBIC
    )
    h = y if d is None else d
    np.multiply(x, x, a)
    np.multiply(a, cube, b)
    np.add(b, linear, b)
    np.multiply(b, x, b)
    np.exp(b, b)
    np.add(b, one, b)
    np.reciprocal(b, h)
    np.multiply(x, h, y)
    if d is None:
        return
    np.multiply(a, square, a)
    np.add(a, slope, a)
    np.multiply(a, y, a)
    np.subtract(one, h, b)
    np.multiply(a, b, a)
    np.add(d, a, d)


def _gelu_erf(x: Any, y: Any, d: Any, a: Any, b: Any) -> None:
    """``y = x P(x)`` with the normal distribution function P and its density p; ``d = P(x) + x p(x)``."""
    minus_half, density = _constants(x.dtype, -0.5, _DENSITY)
    np.multiply(x, x, y)
    np.multiply(y, minus_half, y)
    np.exp(y, y)
    if d is not None:
        np.multiply(x, y, d)
        np.multiply(d, density, d)
    if x.dtype == np.float32:
        _cdf_float32(x, y, a, b)
    else:
        a[...] = normal_cdf(x)
    if d is not None:
        d += a
    np.multiply(x, a, out=y)


def _cdf_float32(x: Any, e: Any, a: Any, b: Any) -> None:
    """Write P(x) to `a`, given ``e = exp(-x^2 / 2)``, by one formula for all x, to 1.5e-7 (about float32's precision).

    Source: Abramowitz & Stegun 1964, formula 7.1.26 (Hastings):
    erfc(z) = (polynomial in t) exp(-z^2), t = 1 / (1 + p z).
    """
    one, half, p, first, *others = _constants(
        x.dtype, 1, 0.5, 0.3275911 * math.sqrt(0.5),
        0.5 * 1.061405429, 0.5 * -1.453152027, 0.5 * 1.421413741, 0.5 * -0.284496736, 0.5 * 0.254829592,
    )  # fmt: skip
    np.absolute(x, b)
    np.multiply(b, p, b)
    np.add(b, one, b)
    np.reciprocal(b, b)
    np.multiply(b, first, a)
    for c in others:
        np.add(a, c, a)
        np.multiply(a, b, a)
    np.multiply(a, e, a)
    np.subtract(half, a, a)
    np.copysign(a, x, a)
    np.add(a, half, a)


def _silu(x: Any, y: Any, d: Any, h: Any, b: Any) -> None:
    """``y = x h``, ``h = 1 / (1 + exp(-x))``; ``d = h + y (1 - h)``."""
    (one,) = _constants(x.dtype, 1)
    np.negative(x, h)
    np.exp(h, h)
    np.add(h, one, h)
    np.reciprocal(h, h)
    np.multiply(x, h, y)
    if d is not None:
        np.subtract(one, h, d)
        np.multiply(d, y, d)
        np.add(d, h, d)


def _forward(pick: Callable[..., Any]) -> Callable[..., tuple[Any, Any]]:
    def forward(xs: tuple[Any, ...], options: tuple[Any, ...], keep: bool) -> tuple[Any, Any]:
        function = pick(*options)
        x = flat(xs[0])
        y = np.empty_like(x)
        d = np.empty_like(x) if keep else None
        n = BLOCK_BYTES // x.itemsize
        scratch = np.empty((2, min(n, len(x))), x.dtype, like=x)
        if function is _gelu_tanh and (loop := compiled.fitting("gelu", x)) is not None:
            for at in blocks(len(x), x.itemsize, BLOCK_BYTES):
                loop(x[at], y[at], scratch[0, : at.stop - at.start] if d is None else d[at])
            return y.reshape(xs[0].shape), d
        with np.errstate(over="ignore"):  # an infinite exp gives the right result: 1 / (1 + inf) = 0
            for at in blocks(len(x), x.itemsize, BLOCK_BYTES):
                a, b = scratch[:, : at.stop - at.start]
                function(x[at], y[at], None if d is None else d[at], a, b)
        return y.reshape(xs[0].shape), d

    return forward


def _backward(
    ct: Any, d: Any, xs: Any, options: Any, wanted: Sequence[bool], last: bool
) -> Sequence[Any]:
    d = d.reshape(ct.shape)
    return (np.multiply(ct, d, out=d if last else None),)


gelu_kernel = Kernel(_forward(lambda form: _gelu_tanh if form == "tanh" else _gelu_erf), _backward)
silu_kernel = Kernel(_forward(lambda: _silu), _backward)
