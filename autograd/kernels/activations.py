"""GELU and SiLU: value and derivative in one pass, so that backward is one product."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import Kernel
from .blocks import blocks, flat
from .normal import normal_cdf

BLOCK_BYTES = 1 << 16
_SLOPE = math.sqrt(2 / math.pi)
_CUBIC = 0.044715
_DENSITY = 1 / math.sqrt(2 * math.pi)


def _gelu_tanh(x: Any, y: Any, d: Any, a: Any, b: Any) -> None:
    """``y = x h``, ``h = (1 + tanh(u)) / 2 = 1 / (1 + exp(-2u))``; ``d = h + 2 y (1 - h) du/dx``.

    ``u = slope (x + cubic x^3)``, by products: NumPy's x**3 is an order of magnitude slower, its exp is twice as fast
    as its tanh.
    """
    h = y if d is None else d
    np.multiply(x, x, out=a)
    np.multiply(a, -2 * _SLOPE * _CUBIC, out=b)
    b -= 2 * _SLOPE
    b *= x
    np.exp(b, out=b)
    b += 1
    np.reciprocal(b, out=h)
    if d is None:
        y *= x
        return
    np.multiply(x, h, out=y)
    a *= 6 * _SLOPE * _CUBIC
    a += 2 * _SLOPE
    a *= y
    np.subtract(1, h, out=b)
    a *= b
    d += a


def _gelu_erf(x: Any, y: Any, d: Any, a: Any, b: Any) -> None:
    """``y = x P(x)`` with the normal distribution's P; ``d = P(x) + x p(x)``."""
    normal_cdf(x, out=a)
    if d is not None:
        np.multiply(x, x, out=b)
        b *= -0.5
        np.exp(b, out=b)
        b *= x
        b *= _DENSITY
        np.add(a, b, out=d)
    np.multiply(x, a, out=y)


def _silu(x: Any, y: Any, d: Any, a: Any, b: Any) -> None:
    """``y = x h``, ``h = 1 / (1 + exp(-x))``; ``d = h + y (1 - h)``."""
    np.negative(x, out=a)
    np.exp(a, out=a)
    a += 1
    np.reciprocal(a, out=a)
    np.multiply(x, a, out=y)
    if d is not None:
        np.subtract(1, a, out=b)
        b *= y
        np.add(a, b, out=d)


def _forward(pick: Callable[..., Any]) -> Callable[..., tuple[Any, Any]]:
    def forward(xs: tuple[Any, ...], options: tuple[Any, ...], keep: bool) -> tuple[Any, Any]:
        function = pick(*options)
        x = flat(xs[0])
        y = np.empty_like(x)
        d = np.empty_like(x) if keep else None
        n = BLOCK_BYTES // x.itemsize
        scratch = np.empty((2, min(n, len(x))), x.dtype)
        with np.errstate(over="ignore"):  # exp's infinity is the right one: 1 / (1 + inf) = 0
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
