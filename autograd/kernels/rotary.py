"""Rotary position embedding in one pass over adjacent pairs of features, which are complex numbers in memory.

A rotation of the pair (a, b) by an angle t is the product of ``a + ib`` with ``exp(it)``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import Kernel

_COMPLEX = {np.dtype(np.float32): np.complex64, np.dtype(np.float64): np.complex128}


def _rotate(x: Any, cos: Any, sin: Any, interleaved: bool, sign: int) -> Any:
    if interleaved and x.dtype in _COMPLEX and x.strides[-1] == x.itemsize:
        table: Any = np.empty(np.broadcast_shapes(cos.shape, sin.shape), _COMPLEX[x.dtype])
        table.real, table.imag = cos, sin if sign > 0 else -sin
        return (x.view(table.dtype) * table).view(x.dtype)
    y = np.empty_like(x)
    half = x.shape[-1] // 2
    ends = (slice(0, None, 2), slice(1, None, 2)) if interleaved else (slice(half), slice(half, None))
    (a, b), (first, second) = ((array[..., ends[0]], array[..., ends[1]]) for array in (x, y))
    sin = sin if sign > 0 else -sin
    np.multiply(a, cos, out=first)
    first -= b * sin
    np.multiply(a, sin, out=second)
    second += b * cos
    return y


def kernel_of(rotate: Callable[[Any, Any, Any, bool, int], Any]) -> Kernel:
    """The kernel made of ``rotate(x, cos, sin, interleaved, sign)``: backward is the inverse rotation."""

    def forward(xs: tuple[Any, ...], options: tuple[Any, ...], keep: bool) -> tuple[Any, Any]:
        x, cos, sin = xs
        return rotate(x, cos, sin, options[0], 1), None

    def backward(
        ct: Any, kept: Any, xs: tuple[Any, ...], options: tuple[Any, ...], wanted: Sequence[bool], last: bool
    ) -> Sequence[Any]:
        _, cos, sin = xs
        return rotate(ct, cos, sin, options[0], -1), None, None

    return Kernel(forward, backward)


rotary_kernel = kernel_of(_rotate)
