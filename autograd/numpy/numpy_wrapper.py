"""The module `autograd.numpy.numpy_wrapper` of HIPS autograd: all names of `autograd.numpy`."""

from __future__ import annotations

from typing import Any

from .. import numpy as _wrapped
from . import concatenate

__all__ = ["concatenate_args"]


def concatenate_args(axis: int, *args: Any) -> Any:
    """Return the arrays `args` joined along an axis."""
    return concatenate(args, axis)


def __getattr__(name: str) -> Any:
    """Return the names of `autograd.numpy`."""
    return getattr(_wrapped, name)
