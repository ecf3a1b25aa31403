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
    """``y = x h``, ``h = (1 + tanh(u)) / 2``, ``u = slope (x + cubic x^3)``; ``d = h + 2 y (1 - h) du/dx``."""
    h = y if d is None else d
    np.multiply(x, x, out=a)
    np.multiply(a, _SLOPE * _CUBIC, out=b)
    b += _SLOPE
    b *= x
    np.tanh(b, out=b)
    b *= 0.5
    np.add(b, 0.5, out=h)
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
    """``y = x h``, ``h = 1 / (1 + exp(-x))``, by tanh, which does not overflow; ``d = h + y (1 - h)``."""
    np.multiply(x, 0.5, out=a)
    np.tanh(a, out=a)
    a *= 0.5
    a += 0.5
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
        for at in blocks(len(x), x.itemsize, BLOCK_BYTES):
            a, b = scratch[:, : at.stop - at.start]
            function(x[at], y[at], None if d is None else d[at], a, b)
        return y.reshape(xs[0].shape), d

    return forward


def _backward(ct: Any, d: Any, xs: Any, options: Any, wanted: Sequence[bool]) -> Sequence[Any]:
    return (ct * d.reshape(ct.shape),)


gelu_kernel = Kernel(_forward(lambda form: _gelu_tanh if form == "tanh" else _gelu_erf), _backward)
silu_kernel = Kernel(_forward(lambda: _silu), _backward)
