"""Matrix products."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..layout import Sum
from ..primitive import op, unbroadcast
from .shape import swapaxes

_K = Sum("k")


def _dims(shapes: Sequence[tuple[int, ...]], options: Any) -> Any:
    a, b = shapes
    batch = max(len(a), len(b), 2) - 2
    left = tuple(range(batch - (len(a) - 2), batch)) + (batch, _K) if len(a) > 1 else (_K,)
    columns = batch + (1 if len(a) > 1 else 0)
    right = tuple(range(batch - (len(b) - 2), batch)) + (_K, columns) if len(b) > 1 else (_K,)
    return [left, right]


def _left(ct: Any, y: Any, a: Any, b: Any) -> Any:
    if b.ndim == 2 and ct.ndim == 2 and a.ndim == 2:
        return ct @ b.T
    if b.ndim == 1:
        return ct * b if a.ndim == 1 else ct.reshape((*ct.shape, 1)) * b
    if a.ndim == 1:
        g = b @ ct.reshape((*ct.shape, 1))
        g = g.reshape(g.shape[:-1])
    else:
        g = ct @ swapaxes(b, -1, -2)
    return unbroadcast(g, a.shape)


def _right(ct: Any, y: Any, a: Any, b: Any) -> Any:
    if a.ndim == 2 and ct.ndim == 2 and b.ndim == 2:
        return a.T @ ct
    if a.ndim == 1:
        if b.ndim == 1:
            return ct * a
        g = a.reshape((a.shape[0], 1)) @ ct.reshape((*ct.shape[:-1], 1, ct.shape[-1]))
        return unbroadcast(g, b.shape)
    if b.ndim == 1:
        g = swapaxes(a, -1, -2) @ ct.reshape((*ct.shape, 1))
        return unbroadcast(g.reshape(g.shape[:-1]), b.shape)
    return unbroadcast(swapaxes(a, -1, -2) @ ct, b.shape)


matmul = op("matmul", "a b", operator.matmul, (_left, _right), saves="01", dims=_dims, operands="x w")


def dot(a: Any, b: Any) -> Any:
    """NumPy's dot for operands of up to two dimensions."""
    return matmul(a, b) if np.ndim(a) and np.ndim(b) else a * b
