"""Conversion of operands to the form that transports take, and of their answers to results.

Arrays stay on their device. A transport that needs host memory copies them itself (`transports.device`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy import ndarray

from autograd.arrays.device import move, to_host
from autograd.arrays.shape_only import DRY, Shaped

__all__ = [
    "Elsewhere", "InShape", "back", "buffer_like", "flat", "from_front", "front", "host_flat", "to_device",
    "zeros_like",
]  # fmt: skip


def flat(x: Any) -> Any:
    """The operand in the form that transports take: one-dimensional and contiguous."""
    if x.__class__ is ndarray:
        if x.flags.c_contiguous:
            return x if x.ndim == 1 else x.reshape(-1)
    elif type(x) is Shaped and not x.absent:
        return x.reshape(-1)
    elif not isinstance(x, ndarray | np.generic | Shaped):
        return x.ravel()  # an array on a device
    return host_flat(x)


def host_flat(x: Any) -> Any:
    """As `flat`, on the host: for collectives that compute on the values themselves."""
    if type(x) is Shaped and not x.absent:
        return x.reshape(-1)
    return np.ascontiguousarray(to_host(x)).reshape(-1)


def to_device(y: Any, like: Any) -> Any:
    """The result on the operand's device."""
    return move(y, like) if isinstance(y, ndarray) else y


def back(answer: Any, shape: tuple[int, ...], like: Any) -> Any:
    """A transport's answer in the given shape, on the operand's device; a scalar stays a scalar."""
    if like.__class__ is ndarray:
        return answer if len(shape) == 1 else answer.reshape(shape)
    y = to_device(answer.reshape(shape), like)
    return y[()] if shape == () and isinstance(like, np.generic) else y


def front(x: Any, dim: int) -> tuple[Any, int]:
    """The operand, flat with dimension `dim` first, and the number of elements per index of `dim`."""
    row = math.prod(x.shape[:dim] + x.shape[dim + 1 :])
    if dim == 0 or (type(x) is Shaped and not x.absent):
        return flat(x), row
    return flat(np.moveaxis(x, dim, 0)), row


class InShape:
    """``finish(answer, operand, call)`` of a collective: reshape the flat answer, on the operand's device."""

    __slots__ = ("shape",)

    def __init__(self, shape: Sequence[int]):
        self.shape = tuple(shape)

    def __call__(self, answer: Any, x: Any, call: Any) -> Any:
        return back(answer, self.shape, x)


class Elsewhere:
    """``finish(answer, operand, call)`` of a collective whose result is on another rank: an array with a shape only."""

    __slots__ = ("result",)

    def __init__(self, result: Shaped):
        self.result = result

    def __call__(self, answer: Any, x: Any, call: Any) -> Shaped:
        return self.result


def from_front(shape: Sequence[int], dim: int) -> Callable[[Any, Any, Any], Any]:
    """``finish(answer, operand, call)`` for an answer that is flat with dimension `dim` first."""
    return InShape(shape) if dim == 0 else lambda y, x, call: _back_from_front(y, shape, dim, x)


def _back_from_front(answer: Any, shape: Sequence[int], dim: int, like: Any) -> Any:
    whole = np.moveaxis(answer.reshape((shape[dim], *shape[:dim], *shape[dim + 1 :])), 0, dim)
    if isinstance(whole, ndarray):
        return move(np.ascontiguousarray(whole), like)
    return whole if type(whole) is Shaped else whole.copy()  # contiguous, on the same device


def buffer_like(like: Any, shape: Sequence[int], dtype: Any, is_dry: bool) -> Any:
    """A flat buffer that a transport can write a value into, on the device of `like` (None: the host).

    In a dry run the buffer has a shape and no memory.
    """
    count = math.prod(shape)
    if is_dry:
        return Shaped((count,), dtype, DRY)
    return np.empty(count, dtype) if like is None else np.empty_like(like, shape=(count,), dtype=dtype)


def zeros_like(x: Any, shape: tuple[int, ...] | None = None) -> Any:
    """Zeros of an operand's dtype and device, and of its shape or the given one; a scalar stays a scalar."""
    if shape is not None and shape != x.shape:
        return Shaped(shape, x.dtype, x.why) if type(x) is Shaped else np.zeros_like(x, shape=shape)
    zeros = x * 0 if type(x) is Shaped else np.zeros_like(x)  # x * 0 would keep a nan
    return zeros[()] if isinstance(x, np.generic) else zeros
