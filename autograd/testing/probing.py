"""How a check calls the function under test: arguments as host arrays, one value, cotangents, random directions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..arrays.device import is_array, is_inexact, to_host
from ..engine.tensor import TENSORS
from ..errors import DtypeError, ShapeError
from ..transforms import vjp
from .report import GradientMismatch

__all__ = ["Function", "arguments", "norm", "pairing", "pulled", "random_like", "raw", "value"]

Function = Callable[..., Any]


def raw(x: Any) -> Any:
    """The array of a Tensor; anything else as it is."""
    return x.array if x.__class__ in TENSORS else x


def arguments(args: Sequence[Any], name: str) -> list[np.ndarray]:
    """The arguments of a check as host arrays that have derivatives."""
    if not args:
        raise ShapeError(f"{name}: no arguments were given; needed: the arrays at which to differentiate")
    xs = [to_host(raw(x)) if is_array(raw(x)) else np.asarray(x) for x in args]
    for i, x in enumerate(xs):
        if not is_inexact(x.dtype):
            raise DtypeError(f"{name}: argument {i} has dtype {x.dtype}; needed: a floating or complex dtype")
    return xs


def value(f: Function, xs: Sequence[Any]) -> np.ndarray:
    """The one array that `f` returns, on the host."""
    y = raw(f(*xs))
    if isinstance(y, tuple | list):
        raise ShapeError(f"the function returned {len(y)} values; needed: one array. Fix: concatenate them")
    y = to_host(y) if is_array(y) else np.asarray(y)
    if not is_inexact(y.dtype):
        raise DtypeError(f"the function returned dtype {y.dtype}; needed: a floating or complex dtype")
    return y


def pulled(f: Function, xs: Sequence[Any], ct: np.ndarray) -> list[np.ndarray]:
    """The cotangents of all arguments, each of its argument's own shape and dtype."""
    found = vjp(f, *xs)[1](ct)
    gs = [to_host(raw(g)) for g in ([found] if len(xs) == 1 else found)]
    for i, (x, g) in enumerate(zip(xs, gs, strict=True)):
        if g.shape != x.shape or g.dtype != x.dtype:
            raise GradientMismatch(
                f"reverse mode, argument {i}: the gradient is {g.dtype}{list(g.shape)}; needed: the argument's own "
                f"{x.dtype}{list(x.shape)}"
            )
    return gs


def random_like(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Normal values of the shape and dtype of `x`."""
    z = rng.standard_normal(x.shape)
    if x.dtype.kind == "c":
        z = z + 1j * rng.standard_normal(x.shape)
    return np.asarray(z).astype(x.dtype)


def pairing(ct: np.ndarray, x: np.ndarray) -> float:
    """``<ct, x>``, its real part: bilinear, without conjugate."""
    return float(np.sum(np.asarray(ct) * np.asarray(x)).real)


def norm(x: np.ndarray) -> float:
    """The Euclidean norm of all elements."""
    return float(np.sqrt(np.sum(np.abs(x) ** 2)))
