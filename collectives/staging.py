"""How operands are laid out for a transport, and its answers put back in shape."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy import ndarray

from autograd.arrays.device import move, to_host
from autograd.arrays.shape_only import DRY, Shaped

__all__ = ["InShape", "back", "empty_flat", "from_front", "front", "host_flat", "zeros_like"]


def host_flat(x: Any) -> Any:
    """The operand as the transports want it: on the host, contiguous, one-dimensional."""
    if x.__class__ is ndarray:
        if x.flags.c_contiguous:
            return x if x.ndim == 1 else x.reshape(-1)
    elif type(x) is Shaped and not x.absent:
        return x.reshape(-1)
    return np.ascontiguousarray(to_host(x)).reshape(-1)


def back(flat: ndarray, shape: tuple[int, ...], like: Any) -> Any:
    """A transport's result in its shape, on the operand's device; a scalar stays a scalar."""
    if like.__class__ is ndarray:
        return flat if len(shape) == 1 else flat.reshape(shape)
    y = move(flat.reshape(shape), like)
    return y[()] if shape == () and isinstance(like, np.generic) else y


def front(x: Any, dim: int) -> tuple[Any, int]:
    """The operand flat with dimension `dim` in front, and how many elements belong to one index of it."""
    row = math.prod(x.shape[:dim] + x.shape[dim + 1 :])
    if dim == 0 or (type(x) is Shaped and not x.absent):
        return host_flat(x), row
    return np.ascontiguousarray(np.moveaxis(to_host(x), dim, 0)).reshape(-1), row


class InShape:
    """``finish(answer, operand, call)`` of a collective: the flat answer in a shape, on the operand's device."""

    __slots__ = ("shape",)

    def __init__(self, shape: Sequence[int]):
        self.shape = tuple(shape)

    def __call__(self, answer: Any, x: Any, call: Any) -> Any:
        return back(answer, self.shape, x)


def from_front(shape: Sequence[int], dim: int) -> Callable[[Any, Any, Any], Any]:
    """``finish(answer, operand, call)`` for an answer that is flat with dimension `dim` in front."""
    return InShape(shape) if dim == 0 else lambda y, x, call: back_from_front(y, shape, dim, x)


def back_from_front(flat: Any, shape: Sequence[int], dim: int, like: Any) -> Any:
    """The array of a shape that is flat with dimension `dim` in front."""
    whole = np.moveaxis(flat.reshape((shape[dim], *shape[:dim], *shape[dim + 1 :])), 0, dim)
    return whole if type(whole) is Shaped else move(np.ascontiguousarray(whole), like)


def empty_flat(shape: Sequence[int], dtype: Any, is_dry: bool) -> Any:
    """A buffer for a transport to write the elements of a value to; in a dry run only its shape."""
    count = math.prod(shape)
    return Shaped((count,), dtype, DRY) if is_dry else np.empty(count, dtype)


def zeros_like(x: Any) -> Any:
    """Zeros of an operand's shape and kind; a scalar stays a scalar."""
    zeros = x * 0 if type(x) is Shaped else np.zeros_like(x)  # x * 0 would keep a nan
    return zeros[()] if isinstance(x, np.generic) else zeros
