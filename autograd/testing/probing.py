"""Random directions, norms, and the value of a function of arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..arrays.device import is_array, is_inexact, to_host
from ..arrays.plain import require_plain
from ..errors import DtypeError, ShapeError, typed_errors
from .coordinates import Function, raw

__all__ = ["Function", "norm", "pairing", "random_like", "raw", "value"]


def value(f: Function, xs: Sequence[Any]) -> np.ndarray:
    """Call `f` and return its result as a host array; raise ShapeError or DtypeError unless it is one such array."""
    y = raw(f(*xs))
    if isinstance(y, tuple | list):
        raise ShapeError(f"the function returned {len(y)} values; needed: one array. Fix: concatenate them")
    y = to_host(y) if is_array(y) else np.asarray(y)
    if not is_inexact(y.dtype):
        raise DtypeError(f"the function returned dtype {y.dtype}; needed: a floating or complex dtype")
    return y


@typed_errors
def random_like(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return standard normal values with the shape and dtype of `x`."""
    z = rng.standard_normal(x.shape)
    if x.dtype.kind == "c":
        z = z + 1j * rng.standard_normal(x.shape)
    return np.asarray(z).astype(x.dtype)


@typed_errors
def pairing(ct: np.ndarray, x: np.ndarray) -> float:
    """Return the real part of ``sum(ct * x)`` of two arrays, the pairing ``<ct, x>``, which has no conjugate."""
    for given, name in ((ct, "ct"), (x, "x")):
        require_plain(given, f"pairing: {name}")
    return float(np.sum(np.asarray(ct) * np.asarray(x)).real)


@typed_errors
def norm(x: np.ndarray) -> float:
    """Return the Euclidean norm of all elements."""
    require_plain(x, "norm: x")
    return float(np.sqrt(np.sum(np.abs(x) ** 2)))
